"""One random chaos run: `python -m tests.chaos --engine sqlite --seed 7 --minutes 3`. See tests/chaos/run.py."""

import argparse
import asyncio
import logging
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.run import Floor, run
from tests.chaos.schedule import draw

EXAMPLES = 5  # of each kind of complaint


def main() -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that brokers cannot be reached is meant
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--engine", choices=["sqlite", "kafka"], default="sqlite")
    parser.add_argument("--seed", type=int, default=None, help="a new one by default")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--without", default="", help="kinds of faults to leave out, with commas between them")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    faults = draw(seed, arguments.minutes * 60, arguments.engine, without=arguments.without.split(","))
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{arguments.engine}-{seed}-"))
    print(f"seed {seed}: {len(faults)} faults; {folder}", flush=True)
    floor = Floor(
        records=round(arguments.minutes * 60 * 20),
        faults=len(faults),
        kills=round(arguments.minutes),
        recoveries=len(faults),
    )
    began = time.monotonic()
    result = asyncio.run(run(folder, arguments.engine, seed, faults, floor))
    for name, value in result.summary.items():
        print(f"{name}: {value}")
    print(f"{time.monotonic() - began:.0f} s in all")
    for complaint in examples(result.complaints):
        print(f"WRONG: {complaint}")
    if result.complaints:
        sys.exit(f"{len(result.complaints)} complaints, seed {seed}; everything is in {folder}")


def examples(complaints: Sequence[str]) -> Iterator[str]:
    """Some of each kind: complaints that differ in numbers only are of one."""
    seen = Counter[str]()
    for complaint in complaints:
        kind = re.sub(r"[0-9a-f]*\d[0-9a-f]*", "", complaint)[:40]
        seen[kind] += 1
        if seen[kind] <= EXAMPLES:
            yield complaint


if __name__ == "__main__":
    main()
