"""`python -m tests.bench [GROUP …]`: measures the product beside its peers and its limits, and prints ratios.

N and RUNS in the environment shorten it: N=20000 RUNS=1 shows in two minutes whether everything still runs.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from tests.bench import report
from tests.bench.groups import GROUPS, Bench
from tests.bench.measure import run
from tests.bench.product import INGEST
from tests.bench.results import Results
from tests.bench.servers import servers

RECORDS = 200_000
RUNS = 5


async def measure(groups: list[str], records: int, runs: int) -> Results:
    began = time.monotonic()
    results = Results()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="ingest-bench-") as directory:
        await run([INGEST, "version"], cwd=Path(directory))  # so that no measured run has to compile
        async with servers(Path(directory)) as started:
            bench = Bench(started, results, records, runs, Path(directory), say)
            for group in groups:
                say(f"— {group}: load average {os.getloadavg()[0]:.1f}")
                await GROUPS[group](bench)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all when absent")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run, for a program to read")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables, as docs/benchmarks.md has them")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    records, runs = int(os.environ.get("N", RECORDS)), int(os.environ.get("RUNS", RUNS))
    results = asyncio.run(measure(arguments.groups or list(GROUPS), records, runs))
    tables = report.markdown(results, records)
    print(f"\n{tables}")
    if arguments.json is not None:
        arguments.json.write_text(report.as_json(results, records))
    if arguments.markdown is not None:
        arguments.markdown.write_text(tables)


main()
