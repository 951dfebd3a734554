"""Answers that say which state they are of: what has not changed need not be sent again."""

from collections.abc import Sequence
from dataclasses import replace

from tests.conformance.case import SINGLE, Case, Expect, Kill, Run, Stage, json_answer, row, rows, up_to
from tests.harness.listings import Answer, Json, Request


class Stated:
    """One page with an ETag; 304 to whoever names it."""

    def __init__(self, stage: Stage, listed: Sequence[Json]) -> None:
        self.rows = listed
        stage.api.routes["/events"] = self._answer

    def _answer(self, request: Request) -> Answer:
        tag = f'"{len(self.rows)}-{self.rows[-1]["updated_at"]}"'
        if request.headers.get("if-none-match") == tag:
            return Answer(request, status=304, headers=(("ETag", tag),), body=b"")
        return json_answer(request, {"data": self.rows}, etag=tag)


def _names_the_state(stage: Stage) -> bool:
    return all("if-none-match" in request.headers for request in stage.asked)


def twice_and_new(stage: Stage) -> Run:
    page = Stated(stage, rows(4))
    yield None
    yield None
    stage.must(_names_the_state(stage), "asks for everything again")
    page.rows = rows(5)
    yield None


def killed(stage: Stage) -> Run:
    page = Stated(stage, rows(4))
    yield None
    page.rows = rows(5)
    yield Kill(1)
    yield None


def gone_and_then_the_same(stage: Stage) -> Run:
    page = Stated(stage, [row(n, at=5) for n in range(1, 4)])
    yield None
    page.rows = page.rows[:2]
    yield None
    yield None


UNCHANGED = replace(SINGLE, conditional=True)

CASES = (
    Case("304", "names the state of an answer (ETag), and answers 304 where it is still that",
         "asked for what is new only, a success, and what is new is read", twice_and_new, UNCHANGED,
         Expect(up_to(5), once=True)),
    Case("304 killed", "(the tool is killed on its way to what is new)", "the next run reads it", killed, UNCHANGED,
         Expect(up_to(5), [True, None, True])),
    Case("304 gone", "no longer lists a row, and then answers 304", "that row is said to be gone, and no other",
         gone_and_then_the_same, replace(UNCHANGED, deletes="sweep"), Expect(up_to(3), deleted=["r3"])),
)  # fmt: skip
