"""Plays one case with one tool."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.conformance.case import Case, Change, Kill, Stage
from tests.conformance.tools import Tool
from tests.conformance.verdict import Played, Ran, Verdict, judge
from tests.harness.fake_api import FakeApi


async def play(case: Case, tool: Tool, directory: Path) -> Verdict:
    async with FakeApi() as api, FakeApi() as other:
        stage = Stage(api, other)
        runs: list[Ran] = []
        for what in case.play(stage):
            stage.begin()
            stage.on_request = partial(_kill, tool, what.at if isinstance(what, Kill) else None)
            if isinstance(what, Change):
                case = replace(case, ask=replace(case.ask, **what.ask))
            runs.append(await tool.run(case, api.url, directory))
            stage.end(tool.slept(directory))
        left = await tool.rows(case, directory)
        played = Played(
            runs, left.rows, left.repeated, stage.leaked, stage.endless, stage.complaints, tool.strict,
            left.dead_letters,
        )  # fmt: skip
        return judge(case.expect, played)


def _kill(tool: Tool, at: int | None, number: int) -> None:
    if number == at:
        tool.kill()
