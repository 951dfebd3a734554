"""`python -m tests.conformance [WORD …]`: plays the cases with this project and its peers, for docs/conformance.md.

With words only the cases whose names hold one of them; the others stay as they were measured on the same day.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from tests.conformance import table
from tests.conformance.case import Case
from tests.conformance.cases import CASES, GROUPS
from tests.conformance.play import play
from tests.conformance.tools import PEERS, Peer, Product, Tool, forks, installed


async def measure(cases: list[Case], names: list[str]) -> dict[str, dict[str, str]]:
    """Tool → case → cell. The tools work side by side."""
    async with AsyncExitStack() as stack:
        tools: list[Tool] = []
        if "ingest" in names:
            tools.append(Product(await stack.enter_async_context(forks(Path(sys.executable), "ingest_run.py"))))
        for peer in PEERS:
            if peer.name in names:
                running = await stack.enter_async_context(forks(peer.python, peer.driver))
                tools.append(Peer(peer.name, running))
        found = await asyncio.gather(*(_all(tool, cases) for tool in tools))
        return dict(zip((tool.name for tool in tools), found, strict=True))


async def _all(tool: Tool, cases: list[Case]) -> dict[str, str]:
    cells = {}
    for case in cases:
        asked = tool.name == "ingest" or case.peers
        with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
            cells[case.ids] = table.cell(await play(case, tool, Path(directory)) if asked else None)
        print(f"{tool.name:12} {case.ids:24} {cells[case.ids]}", flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--tool", action="append", choices=["ingest", *(peer.name for peer in PEERS)])
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.words or any(word in case.ids for word in arguments.words)]
    versions = {"ingest": "", **{peer.name: installed(peer) for peer in PEERS}}
    today = datetime.now(UTC).date()
    cells = table.measured(versions, today)
    found = asyncio.run(measure(cases, arguments.tool or list(versions)))
    for case in cases:
        cells[case.ids] = {**cells.get(case.ids, {}), **{tool: measured[case.ids] for tool, measured in found.items()}}
    whole = {name: row for name, row in cells.items() if row.keys() == versions.keys()}
    if whole.keys() >= {case.ids for case in CASES}:
        table.write(table.markdown(GROUPS, versions, whole, today))
        print(f"written: {table.PAGE}")


main()
