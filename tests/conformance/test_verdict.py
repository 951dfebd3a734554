"""A verdict names the worst thing that a tool did, and a right one is right in every respect."""

from dataclasses import replace

import pytest

from tests.conformance.case import Expect
from tests.conformance.verdict import RIGHT, Played, Ran, judge

WELL = Ran(True, "said")
FAILED = Ran(False, "Error")
ROWS = [{"id": '"r1"', "n": "1"}, {"id": '"r2"', "n": "2"}]
BOTH = Expect(["r1", "r2"], once=True)
GOOD = Played([WELL], ROWS, strict=True)
CUT_OFF = Expect(["r1", "r2"], [False])


@pytest.mark.parametrize(
    ("expect", "played", "words"),
    [
        (BOTH, GOOD, RIGHT.words),
        (BOTH, GOOD._replace(rows=ROWS[:1]), "success, 1 of 2 rows missing"),
        (BOTH, GOOD._replace(rows=[*ROWS, {"id": '"r3"'}]), "1 row that should not be there: r3"),
        (BOTH, GOOD._replace(repeated=2), "2 rows twice"),
        (BOTH, GOOD._replace(repeated=2, strict=False), RIGHT.words),
        (replace(BOTH, never_twice=True), GOOD._replace(repeated=1, strict=False), "1 row twice"),
        (BOTH, GOOD._replace(runs=[FAILED]), "fails (Error)"),
        (BOTH, GOOD._replace(runs=[FAILED._replace(hung=True)]), "hangs"),
        (BOTH, GOOD._replace(runs=[FAILED._replace(killed=True), WELL]), RIGHT.words),
        (BOTH, GOOD._replace(runs=[FAILED], endless=True), "goes on for ever"),
        (BOTH, GOOD._replace(endless=True, leaked=["/events"]), "gives the token to the other host"),
        (BOTH, GOOD._replace(complaints=["asks too often", "asks too often"]), "asks too often"),
        (BOTH, GOOD._replace(dead_letters=1), "1 dead letters, not 0"),
        (replace(BOTH, values={"r2": {"n": "3"}}), GOOD, "n arrives as 2, not 3"),
        (replace(BOTH, said="circle"), GOOD, "does not say 'circle', but: said"),
        (replace(BOTH, deleted=["r1"]), GOOD, "says that nothing is gone, not r1"),
        (replace(BOTH, gone=["r1"]), GOOD._replace(deleted=["r1"]), "says that r1 is gone, not nothing"),
        (replace(BOTH, gone=["r1"]), GOOD._replace(deleted=["r1"], strict=False), RIGHT.words),
        (CUT_OFF, GOOD._replace(runs=[FAILED]), RIGHT.words),
        (CUT_OFF, GOOD, "success, as if nothing were wrong"),
        (CUT_OFF, GOOD._replace(rows=[]), "success, 2 of 2 rows missing"),
        (CUT_OFF, GOOD._replace(runs=[FAILED], rows=[]), "2 of 2 rows missing of what was read"),
        (CUT_OFF, GOOD._replace(runs=[FAILED], rows=[], strict=False), RIGHT.words),
    ],
)
def test_the_worst_is_named(expect: Expect, played: Played, words: str) -> None:
    verdict = judge(expect, played)
    assert verdict.words == words
    assert verdict.right == (words == RIGHT.words)


@pytest.mark.parametrize(("said", "right"), [("there may be more", True), ("done", False)])
def test_rows_that_a_tool_does_not_bring_must_be_spoken_of(said: str, right: bool) -> None:
    expect = Expect(["r1"], full=["r1", "r2"], told="more")
    played = Played([Ran(True, said)], ROWS[:1])
    assert judge(expect, played).right is right
    assert judge(expect, played._replace(rows=ROWS)).right
