"""Rows that are no longer there: what is gone, what is only missing, and what a bad listing does not say."""

from collections.abc import Sequence
from dataclasses import replace

from tests.conformance.case import CURSOR, PAGE, TOKEN, Case, Command, Expect, Kill, Play, Run, Stage, row, rows, up_to
from tests.harness import faults
from tests.harness.faults import Fault
from tests.harness.listings import Answer, Json

SIX = rows(6)
ALL_BUT_2 = [row(n) for n in (1, 3, 4, 5, 6)]


def then(later: Sequence[Json], *what: Fault) -> Play:
    """Six rows, and in the next run these; its requests meet this."""

    def play(stage: Stage) -> Run:
        listing = stage.serve(SIX)
        yield None
        listing.replace(later)
        stage.api.misbehave(what)
        yield None

    return play


def fails_and_goes_on(stage: Stage) -> Run:
    """The second run is killed on its way to page 2, the third goes on there."""
    stage.serve(SIX)
    yield None
    yield Kill(3)
    yield None


def token_refused(stage: Stage) -> Run:
    """The second run is killed behind page 2. Then its token is refused, and the rows of page 1 are gone."""
    listing = stage.serve(SIX)
    yield None
    yield Kill(3)
    listing.replace(rows(4, first=3))
    stage.api.misbehave([lambda answer: faults.status(410)(answer) if answer.start else answer])
    yield None


def counted(stage: Stage) -> Run:
    """A row goes while pages are counted: the one behind it slips to the page before, unseen."""
    listing = stage.serve(SIX, "page")
    yield None

    def behind_page_1(answer: Answer) -> Answer:
        listing.remove("r1")
        return answer

    stage.api.misbehave([behind_page_1])
    yield None


def found_again(stage: Stage) -> Run:
    """The first run is not shown two rows; whoever looks again sees them."""
    listing = stage.serve(rows(4))
    yield None
    listing.replace(SIX)
    yield Command(["consume", "store", "--once"])
    yield Command(["verify", "--source", "api"])


def less_for_strangers(stage: Stage) -> Run:
    """The token ends; from then on the list shows what everyone may see, with 200."""
    listing = stage.serve(SIX)
    known = [True]
    stage.api.routes["/me"] = lambda request: Answer(request, status=200 if known[0] else 401, body=b"{}")
    yield None
    known[0] = False
    listing.replace(rows(2))
    yield None


def says_so_itself(stage: Stage) -> Run:
    listing = stage.serve([row(n, gone=False) for n in range(1, 5)])
    yield None
    listing.replace([row(n, gone=n == 2) for n in range(1, 5)])
    yield None


def told_elsewhere(stage: Stage) -> Run:
    listing = stage.serve(SIX)
    told = stage.api.serve("deleted", [], style="cursor", page_size=2)
    yield None
    listing.replace(ALL_BUT_2)
    told.add({"id": "d1", "object": "r2"})
    yield None


SWEPT = replace(CURSOR, deletes="sweep")
NOTHING_GONE = Expect(up_to(6))

CASES = (
    Case("rule 12", "no longer lists a row", "it is said to be gone", then(ALL_BUT_2), SWEPT,
         Expect(up_to(6), deleted=["r2"])),
    Case("rule 12 cut off", "no longer lists rows, because page 2 fails", "nothing is said to be gone",
         then(SIX, faults.ok, *[faults.status(500)] * 20), SWEPT, Expect(up_to(6), [True, False])),
    Case("rule 12 204", "no longer lists rows, because it answers 204", "nothing is said to be gone",
         then(SIX, faults.no_content), SWEPT, Expect(up_to(6), [True, None])),
    Case("B68", "(a run is killed on page 3, the next goes on there)", "what page 1 held is not gone",
         fails_and_goes_on, SWEPT, Expect(up_to(6), [True, None, True])),
    Case("B68 refused", "(a run is killed on page 3) and refuses the token with which the next one goes on",
         "nothing is concluded from a listing that began again", token_refused, SWEPT,
         Expect(up_to(6), [True, None, True], gone=up_to(2))),
    Case("rule 12 counted", "a row is deleted while pages are counted, and another slips through",
         "the row that slipped is not said to be gone", counted, replace(PAGE, deletes="sweep"), Expect(up_to(6))),
    Case("soft", "marks a row as gone", "it is said to be gone", says_so_itself,
         replace(CURSOR, deletes="soft", fields=["gone", "updated_at", "n"]), Expect(up_to(4), deleted=["r2"])),
    Case("feed of deletes", "lists elsewhere what was deleted", "it is said to be gone", told_elsewhere,
         replace(CURSOR, deletes="feed"), Expect(up_to(6), deleted=["r2"])),
    Case("rule 13", "lists nothing where there were rows", "not a success", then([]), CURSOR,
         Expect(up_to(6), [True, False], said="")),
    Case("B29", "lists a third of the rows, and says nothing", "`max_drop: 50%`: not a success", then(SIX[:2]), CURSOR,
         Expect(up_to(6), [True, False], said="max_drop"), keys={"expect": {"max_drop": "50%"}}),
    Case("B29 verify", "did not list two rows, and says nothing", "`ingest verify` lists again and names them",
         found_again, CURSOR, Expect(up_to(4), [True, True, False], said="r5"), peers=False),
    Case("less", "shows less, with 200, to a token that has ended", "not a success, and nothing is said to be gone",
         less_for_strangers, replace(SWEPT, auth={"bearer": TOKEN, "probe": "/me"}),
         Expect(up_to(6), [True, False])),
    Case("B47", "lists nothing, ever", "`min_records: 1`: not a success", lambda stage: _nothing(stage), CURSOR,
         Expect([], [False], said="min_records"), keys={"expect": {"min_records": 1}}),
)  # fmt: skip


def _nothing(stage: Stage) -> Run:
    stage.serve([])
    yield None
