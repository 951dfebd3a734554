"""Answers that are no pages: errors under any status, broken and missing bodies, silence, waits that are asked for."""

import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate

from tests.conformance.case import (
    CURSOR,
    PAGE,
    SINGLE,
    Case,
    Expect,
    Play,
    Run,
    Stage,
    answered,
    ids,
    json_answer,
    rows,
    up_to,
)
from tests.harness import faults
from tests.harness.faults import Fault
from tests.harness.listings import Answer, Request, Style

ALWAYS = 50
ANY_SIZE = {"style": "page", "param": "page", "start": 1}
IMPATIENT = replace(CURSOR, read_timeout=0.5)


def on_page_2(*what: Fault, style: Style = "cursor") -> Play:
    """Six rows in three pages; the second request, and those after it, meet this."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(6), style)
        stage.api.misbehave([faults.ok, *what])
        yield None

    return play


def from_the_start(fault: Fault) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(4))
        stage.api.misbehave([fault] * ALWAYS)
        yield None

    return play


def says(body: object) -> Play:
    def play(stage: Stage) -> Run:
        answered(stage, body)
        yield None

    return play


def packed(told: bool) -> Play:
    """gzip, with or without a word of it in the headers."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            plain = json_answer(request, {"data": rows(3)})
            headers = (*plain.headers, ("Content-Encoding", "gzip")) if told else plain.headers
            return replace(plain, body=gzip.compress(plain.body or b""), headers=headers)

        stage.api.routes["/events"] = answer
        yield None

    return play


def later_is(body: dict[str, object], *, status: int = 200, times: int = 1) -> Play:
    """Page 2 is this, so many times."""
    return on_page_2(*[faults.status(status, json.dumps(body).encode())] * times)


def one_page_is_refused(stage: Stage) -> Run:
    """The second of three, always."""
    listing = stage.serve(rows(6), "page")

    def answer(request: Request) -> Answer:
        meant = listing.answer(request)
        return faults.status(403)(meant) if request.query.get("page") == "2" else meant

    stage.api.routes["/events"] = answer
    yield None


def nothing_behind_the_last(stage: Stage) -> Run:
    pages = {"1": rows(2), "2": rows(2, first=3)}

    def answer(request: Request) -> Answer:
        page = pages.get(request.query.get("page", "1"))
        return json_answer(request, {"data": page}) if page else faults.status(404)(Answer(request))

    stage.api.routes["/events"] = answer
    yield None


def token_is_forgotten(stage: Stage) -> Run:
    """Amid the listing, once."""
    stage.serve(rows(6))
    stage.api.misbehave([faults.ok, faults.ok, faults.status(410)])
    yield None


def kept_connections_break(stage: Stage) -> Run:
    """Every request on a connection that was kept alive meets a reset."""
    listing = stage.serve(rows(6))

    def answer(request: Request) -> Answer:
        return faults.reset(listing.answer(request)) if request.reused else listing.answer(request)

    stage.api.routes["/events"] = answer
    yield None


def asks_to_wait(header: str | Callable[[], str], at_least: float, *, status: int = 429) -> Play:
    """Once, on page 2."""

    def play(stage: Stage) -> Run:
        stage.serve(rows(4))

        def busy(answer: Answer) -> Answer:
            value = header if isinstance(header, str) else header()
            return faults.status(status, retry_after=value)(answer)

        stage.api.misbehave([faults.ok, busy])
        yield None
        stage.must(stage.waited >= at_least, f"comes back after {stage.waited:.1f} s, not {at_least:g}")

    return play


def asks_for_an_hour(stage: Stage) -> Run:
    stage.serve(rows(4))
    stage.api.misbehave([faults.ok, *[faults.rate_limited("3600")] * ALWAYS])
    yield None
    too_early = len(stage.asked) > 2 and stage.waited < 3600
    stage.must(not too_early, f"comes back {len(stage.asked) - 2} times within {stage.waited:.0f} s")


def in_two_seconds() -> str:
    return formatdate(time.time() + 2, usegmt=True)


def an_hour_ago() -> str:
    return formatdate(time.time() - 3600, usegmt=True)


ALL = Expect(up_to(6))
WAITED = Expect(up_to(4))


def fails(rows_before: int, said: str) -> Expect:
    return Expect(up_to(rows_before), [False], said=said)


CASES = (
    Case("V4 B48", 'answers 200 with `{"error": "quota"}`', "the run fails and shows the answer",
         says({"error": "quota"}), SINGLE, fails(0, "quota")),
    Case("V4 page 2", "answers page 2 with 200 and an error", "the run fails; page 1 stays",
         on_page_2(*[faults.error_body({"error": "quota"})] * ALWAYS), CURSOR, fails(2, "quota")),
    Case("V5", "has moved the list from `data` to `items`", "the run fails and names the lists that are there",
         from_the_start(faults.records_at("items")), CURSOR, fails(0, r"\$\.items \(2\)")),
    Case("V5 null", 'answers `{"data": null}`', "the run fails: what is no list is no empty list", says({"data": None}),
         SINGLE, fails(0, r"\$\.data")),
    Case("V11 B48", "answers 200 with a login page", "tried again, then the run fails", from_the_start(faults.html),
         CURSOR, fails(0, "an HTML page")),
    Case("V11 once", "answers page 2 with 200 and HTML, once", "tried again", on_page_2(faults.html), CURSOR, ALL),
    Case("B48 empty", "answers page 2 with 200 and no body, once", "tried again", on_page_2(faults.empty), CURSOR, ALL),
    Case("B48 empty, always", "answers page 2 with 200 and no body", "the run fails",
         on_page_2(*[faults.empty] * ALWAYS), CURSOR, fails(2, "it is empty")),
    Case("B49", "answers 204", "no rows, and a success", from_the_start(faults.no_content), CURSOR, Expect([])),
    Case("B49 page 2", "numbers its pages, and answers 204 after the last", "the end",
         on_page_2(*[faults.no_content] * ALWAYS, style="page"), PAGE, Expect(up_to(2))),
    Case("V4 retry", 'answers page 2 with 200 and `{"error": "busy"}`, once, and we know it', "tried again, as we say",
         later_is({"error": "busy"}), replace(CURSOR, errors=[{"member": "error", "do": "retry"}]), ALL),
    Case("rate_limited", "answers page 2 with 403 when it is asked too often, once, and we know it",
         "tried again, as we say", on_page_2(faults.status(403)),
         replace(CURSOR, errors=[{"status": 403, "do": "rate_limited"}]), ALL),
    Case("X17", "answers page 2 of 3 with 403, and we want the others", "page 3 is read, and the gap is told",
         one_page_is_refused, replace(PAGE, errors=[{"status": 403, "do": "skip"}]),
         Expect(ids(1, 2, 5, 6), said="(?i)gap|left out|skip")),
    Case("end", "answers 404 behind the last page, and we know it", "the end", nothing_behind_the_last,
         replace(PAGE, paging=ANY_SIZE, errors=[{"status": 404, "do": "end"}]), Expect(up_to(4))),
    Case("restart", "forgets its token amid the listing, and we know it", "the listing begins again",
         token_is_forgotten, replace(CURSOR, errors=[{"status": 410, "do": "restart_listing"}]), ALL),
    Case("V11b", "packs its answers with gzip, and does not say so", "unpacked", packed(False),
         replace(SINGLE, packed=True), Expect(up_to(3))),
    Case("gzip", "packs its answers with gzip", "unpacked", packed(True), SINGLE, Expect(up_to(3))),
    Case("V12 B50", "breaks off in the middle of page 2, once", "tried again", on_page_2(faults.truncated), CURSOR,
         ALL),
    Case("B50 always", "breaks off in the middle of page 2", "the run fails, and nothing of half a page is taken",
         on_page_2(*[faults.truncated] * ALWAYS), CURSOR, fails(2, "attempt 4 of 4")),
    Case("B51 reset", "resets the connection on page 2, once", "tried again", on_page_2(faults.reset), CURSOR, ALL),
    Case("B2 B51", "sends headers and no body, once", "given up after the read timeout, and tried again",
         on_page_2(faults.slow(120)), IMPATIENT, ALL),
    Case("X13", "sends page 2 at a byte a quarter of a second, once", "the whole request has a limit, not only a read",
         on_page_2(faults.dripping(0.25)), IMPATIENT, ALL, above={"timeout": {"total": "1s"}}),
    Case("X16", "resets connections that were kept alive", "sent again at once", kept_connections_break, CURSOR, ALL),
    *(
        Case(f"retry {status}", f"answers page 2 with {status}, once", "tried again", on_page_2(faults.status(status)),
             CURSOR, ALL)
        for status in (408, 429, 500, 502, 503, 504)
    ),
    Case("B52", "answers page 2 with 500 and HTML", "the run fails and shows the 500",
         on_page_2(*[faults.status(500, b"<html>Oops</html>")] * ALWAYS), CURSOR, fails(2, "500.*Oops")),
    *(
        Case(f"B46 {status}", f"answers page 2 with {status}", "the run fails; page 1 stays",
             on_page_2(*[faults.status(status)] * ALWAYS), CURSOR, fails(2, str(status)))
        for status in (400, 403, 404)
    ),
    *(
        Case(f"B47 {status}", f"answers everything with {status}", "the run fails, not: no rows, success",
             from_the_start(faults.status(status)), CURSOR, fails(0, str(status)))
        for status in (401, 403)
    ),
    *(
        Case(f"B41 V15 {name}", f"answers page 2 with 429, Retry-After: {shown}", must,
             asks_to_wait(header, at_least), CURSOR, WAITED)
        for name, shown, header, at_least, must in (
            ("seconds", "1", "1", 1, "waits a second"),
            ("fraction", "1.2", "1.2", 1.2, "waits 1.2 seconds"),
            ("list", "0, 2", "0, 2", 2, "waits for the longest"),
            ("date", "a date in two seconds", in_two_seconds, 0.5, "waits until then"),
            ("past", "a date of an hour ago", an_hour_ago, 0, "comes back by its own rules"),
            ("garbage", "soon", "soon", 0, "comes back by its own rules"),
            ("year 99999", "a date of the year 99999", "Fri, 31 Dec 99999 23:59:59 GMT", 0, "does not crash"),
        )
    ),
    Case("B41 503", "answers page 2 with 503, Retry-After: 1", "waits a second", asks_to_wait("1", 1, status=503),
         CURSOR, WAITED),
    Case("V15 hour", "answers page 2 with 429, Retry-After: 3600", "waits for an hour, or says when it may come back",
         asks_for_an_hour, CURSOR, Expect(up_to(2), [None], said="max_wait"),
         above={"retry": {"attempts": 4, "base": "1ms", "cap": "2ms", "max_wait": "30s"}}),
    Case("B61", "sends a body of megabytes", "more than `max_body` is never read; the run says so",
         says({"data": [{"id": "r1", "text": "x" * 3_000_000}]}), SINGLE, fails(0, "max_body"),
         above={"limits": {"max_body": "1MB"}}, peers=False),
)  # fmt: skip
