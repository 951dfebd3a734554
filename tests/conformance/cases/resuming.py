"""Runs that were cut off, and where the next one goes on."""

from dataclasses import replace

from tests.conformance.case import (
    CURSOR,
    Case,
    Change,
    Command,
    Expect,
    Kill,
    Play,
    Run,
    Since,
    Stage,
    ids,
    json_answer,
    row,
    rows,
    up_to,
)
from tests.conformance.cases.boundaries import ASCENDING, ONE_PAGE
from tests.harness import faults
from tests.harness.listings import Answer, Request

SYNCED = replace(ONE_PAGE, since=Since("sync", "sync", kind="token"))


def newest_first_and_cut_off(stage: Stage) -> Run:
    stage.serve(rows(6)[::-1])
    stage.api.misbehave([faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None


def oldest_first_and_cut_off(stage: Stage) -> Run:
    stage.serve(rows(8))
    stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None
    stage.must(len(stage.asked) <= 3, "begins again at the first page")


def unordered_though_promised(stage: Stage) -> Run:
    """Page 1 holds a newer row than page 2, which cannot be had at first."""
    stage.serve([row(1), row(6), row(2), row(3)])
    stage.api.misbehave([faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield None


def killed(at: int) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(10))
        yield Kill(at)
        yield None
        stage.must("cursor" in stage.asked[0].query, "begins again at the first page")

    return play


def token_refused(status: int) -> Play:
    """Page 3 cannot be had; a day later its token is no longer known."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(8))
        stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
        yield None
        stage.api.misbehave([lambda answer: faults.status(status)(answer) if answer.start else answer])
        yield None

    return play


def looked_at(*argv: str) -> Play:
    """Page 3 cannot be had; before the next run someone looks."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(8))
        stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
        yield None
        stage.api.misbehave([])
        yield Command(argv)
        yield None
        stage.must(stage.asked[0].query.get("cursor") == "t4", "does not go on where it stood")

    return play


def another_filter(stage: Stage) -> Run:
    """Page 3 cannot be had; then the configuration asks for something else."""
    stage.serve(rows(8))
    stage.api.misbehave([faults.ok, faults.ok, *[faults.status(500)] * 20])
    yield None
    stage.api.misbehave([])
    yield Change({"params": {"kind": "b"}})
    stage.must("cursor" not in stage.asked[0].query, "goes on with a token of another listing")


def gives_a_sync_token(refused: bool) -> Play:
    """The last page names what starts the next run. `refused`: by then it is too old."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            if (token := request.query.get("sync")) is None:
                count = 2 if len(stage.api.requests) == 1 else 3
                return json_answer(request, {"data": rows(count), "sync": "s2"})
            if refused:
                return Answer(request, status=410, body=b'{"error":"full sync required"}')
            return json_answer(request, {"data": rows(1, first=3) if token == "s2" else [], "sync": "s3"})

        stage.api.routes["/events"] = answer
        yield None
        yield None

    return play


CASES = (
    Case("sync token", "the last page names what starts the next run", "the next run starts there",
         gives_a_sync_token(False), SYNCED, Expect(up_to(3), once=True)),
    Case("sync token 410", "refuses what starts the next run, because it is too old", "one full read",
         gives_a_sync_token(True), SYNCED, Expect(up_to(3))),
    Case("B26 cut off", "lists the newest first, and fails on page 2", "the next run reads the older rows too",
         newest_first_and_cut_off, replace(CURSOR, since=Since(descending=True)), Expect(up_to(6), [False, True])),
    Case("B64", "fails on page 3 for a while", "the next run goes on at page 3", oldest_first_and_cut_off, ASCENDING,
         Expect(up_to(8), [False, True], once=True)),
    Case("B64 killed", "(the tool is killed while page 3 is on its way)", "the next run goes on there", killed(3),
         CURSOR, Expect(up_to(10), [None, True])),
    Case("B39 promised", "rows come in no order although it promises one, and page 2 fails at first",
         "no row behind the mark is lost", unordered_though_promised, ASCENDING,
         Expect(ids(1, 2, 3, 6), [False, True])),
    *(
        Case(f"X1 {status}", f"page 3 fails, and later its token is refused with {status}",
             "the window begins again, once", token_refused(status), ASCENDING, Expect(up_to(8), [False, True]))
        for status in (400, 404, 410)
    ),
    *(
        Case(f"B15 {argv[0]}", f"page 3 fails, and `ingest {' '.join(argv)}` runs before the next run",
             "the next run goes on where it stood", looked_at(*argv), CURSOR,
             Expect(up_to(8), [False, True, True], once=True), peers=False)
        for argv in (
            ("check", "--connect"), ("preview", "--source", "api", "--stream", "events"),
            ("run", "--once", "--dry-run"),
        )
    ),
    Case("X2", "page 3 fails, and then the configuration asks for something else",
         "the saved token is not used for another listing", another_filter, CURSOR, Expect(up_to(8), [False, True])),
)  # fmt: skip
