"""Plays one case with one tool."""

import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.conformance.case import Case, Change, Command, Kill, Stage
from tests.conformance.tools import Tool
from tests.conformance.verdict import Played, Ran, Verdict, judge
from tests.harness.certificates import Authority
from tests.harness.fake_api import FakeApi


async def play(case: Case, tool: Tool, directory: Path) -> Verdict:
    tls = None
    if case.secure:
        tls, case = _secured(case, directory / "tls")
    async with FakeApi(tls=tls) as api, FakeApi() as other:
        stage = Stage(api, other)
        runs: list[Ran] = []
        for what in case.play(stage):
            stage.begin()
            stage.on_request = partial(_kill, tool, what.at if isinstance(what, Kill) else None)
            if isinstance(what, Change):
                case = replace(case, ask=replace(case.ask, **what.ask), above={**case.above, **what.above})
            argv = what.argv if isinstance(what, Command) else ()
            runs.append(await tool.run(case, api.url, directory, argv))
            stage.end(tool.slept(directory))
        left = await tool.rows(case, directory)
        played = Played(
            runs, left.rows, left.repeated, stage.leaked, stage.endless, stage.complaints, tool.strict,
            left.dead_letters, left.deleted,
        )  # fmt: skip
        return judge(case.expect, played)


def _secured(case: Case, directory: Path) -> tuple[ssl.SSLContext, Case]:
    """The server's side, and the case with what a client needs to trust it."""
    authority = Authority(directory)
    issued = authority.issue("server", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.cert, issued.key)
    ca = str(authority.ca)
    trusting = replace(case, above={**case.above, "tls": {"ca": ca}}, environment={"REQUESTS_CA_BUNDLE": ca})
    return context, trusting


def _kill(tool: Tool, at: int | None, number: int) -> None:
    if number == at:
        tool.kill()
