"""When a listing ends, and when it must not: loops, short and empty pages, totals, caps."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.case import (
    CURSOR,
    NEXT_URL,
    OFFSET,
    PAGE,
    PAGING,
    SINGLE,
    Ask,
    Case,
    Expect,
    Play,
    Run,
    Since,
    Stage,
    answered,
    ids,
    json_answer,
    row,
    rows,
    up_to,
)
from tests.conformance.cases.paging import LAST_ID, STYLES
from tests.harness import faults
from tests.harness.listings import Answer, Json, Request, Style

CAPPED = replace(CURSOR, paging={**CURSOR.paging, "cap": 4}, since=Since(ascending=True))


def ignores_the_token(stage: Stage) -> Run:
    answered(stage, {"data": rows(3), "has_more": True})
    yield None
    stage.must(len(stage.asked) <= 3, f"{len(stage.asked)} requests before it notices")


def repeats(*tokens: str) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(40))
        stage.api.misbehave(itertools.cycle(faults.token(text) for text in tokens))
        yield None

    return play


def links_to_itself(stage: Stage) -> Run:
    stage.serve(rows(6), "next_url")
    stage.api.misbehave([faults.ok, *[faults.self_link] * 80])
    yield None


def empty_for_ever(stage: Stage) -> Run:
    count = itertools.count()
    stage.api.routes["/events"] = lambda request: json_answer(
        request, {"data": [], "next_cursor": f"t{next(count)}", "has_more": True}
    )
    yield None


def five_one_by_one(style: Style) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(5), style, size=1)
        yield None

    return play


def one_at_a_time(ask: Ask) -> Ask:
    return replace(ask, paging={**ask.paging, "size": 1} if "size" in ask.paging else ask.paging)


def may_be_short(ask: Ask) -> Ask:
    return replace(ask, paging={**ask.paging, "short_pages": True})


def short_pages(style: Style, sizes: Sequence[int]) -> Play:
    """Pages of these sizes, whatever is asked; no total is told."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            start = int(request.query["offset"]) if style == "offset" else sum(sizes[: int(request.query["page"]) - 1])
            size = dict(zip(itertools.accumulate((0, *sizes)), sizes, strict=False)).get(start, 2)
            return json_answer(request, {"data": rows(sum(sizes))[start : start + size]})

        stage.api.routes["/events"] = answer
        yield None

    return play


def an_empty_page_in_the_middle(stage: Stage) -> Run:
    pages = {None: (rows(2), "2"), "2": ([], "3"), "3": (rows(2, first=3), None)}

    def answer(request: Request) -> Answer:
        data, token = pages[request.query.get("cursor")]
        return json_answer(request, {"data": data, "next_cursor": token, "has_more": token is not None})

    stage.api.routes["/events"] = answer
    yield None


def capped(style: Style) -> Play:
    """At most two rows a page, whatever is asked for; a total is not told."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            page = int(request.query.get("page", 1))
            at = int(request.query.get("offset", 0)) if style == "offset" else (page - 1) * 2
            return json_answer(request, {"data": rows(5)[at : at + 2]})

        stage.api.routes["/events"] = answer
        yield None

    return play


def has_a_next_page(body: dict[str, Any], header: str = "") -> Play:
    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            if request.query.get("p") == "2":
                return json_answer(request, {"value": rows(2, first=3)})
            there = f"{request.origin}/events?p=2"
            told = {name: there if value == "URL" else value for name, value in body.items()}
            headers = {"link": f'<{there}>; rel="next"'} if header else {}
            return json_answer(request, {"value": rows(2), **told}, **headers)

        stage.api.routes["/events"] = answer
        yield None

    return play


def ends_with(**token: object) -> Play:
    """One page, whose token is what is given, or not there."""

    def play(stage: Stage) -> Run:
        answered(stage, {"data": rows(2), **token})
        yield None
        stage.must(len(stage.asked) == 1, f"{len(stage.asked)} requests for one page")

    return play


def total_moves(totals: Sequence[int]) -> Play:
    """Six rows in pages of two; each answer declares the next of these totals, the last one for ever."""

    def play(stage: Stage) -> Run:
        left = list(totals)

        def answer(request: Request) -> Answer:
            at = int(request.query.get("offset", 0))
            total = left.pop(0) if len(left) > 1 else left[0]
            return json_answer(request, {"data": rows(6)[at : at + 2], "total": total})

        stage.api.routes["/events"] = answer
        yield None

    return play


def says_more_without_a_token(stage: Stage) -> Run:
    answered(stage, {"data": rows(2), "next_cursor": None, "has_more": True})
    yield None


def some_are_wanted(style: Style) -> Play:
    """Of each page of two, one row is of the kind that is wanted."""

    def play(stage: Stage) -> Run:
        stage.serve([row(n, kind="a" if n % 2 else "b") for n in range(1, 7)], style)
        yield None

    return play


def stops_at_a_cap(listed: Sequence[Json]) -> Play:
    """Rows by time, from a lower bound on; of one listing no more than four."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            since, at = request.query.get("since", ""), int(request.query.get("cursor", 0))
            found = [one for one in listed if str(one["updated_at"]) >= since][:4]
            token = str(at + 2) if at + 2 < len(found) else None
            body = {"data": found[at : at + 2], "next_cursor": token, "has_more": token is not None}
            return json_answer(request, body)

        stage.api.routes["/events"] = answer
        yield None

    return play


def leaves_the_empty_list_out(stage: Stage) -> Run:
    answered(stage, {"count": 0})
    yield None


CASES = (
    *(
        Case(f"B6 {style}", f"one row of each page is wanted, `{style}`", "what is left out does not end the listing",
             some_are_wanted(style), replace(STYLES[style], keep=("kind", "a"), fields=["kind", "updated_at", "n"]),
             Expect(ids(1, 3, 5)))
        for style in ("cursor", "page", "offset")
    ),
    Case("B13 cap", "gives no more than four rows of one listing", "it begins again at the last time; all rows",
         stops_at_a_cap(rows(9)), CAPPED, Expect(up_to(9), once=True)),
    Case("B13 one time", "gives no more than four rows of one listing, and six rows have one time",
         "the run fails and says why; it does not begin again for ever",
         stops_at_a_cap([row(n, at=7) for n in range(1, 7)]), CAPPED, Expect(up_to(4), [False], said="listing_cap")),
    Case("absent list", "leaves an empty list out", "no rows, and a success", leaves_the_empty_list_out, SINGLE,
         Expect([]), keys={"records": {"path": "$.data", "absent": "empty"}}),
    Case("B1", "ignores the token and gives the same page for ever", "the run fails; the page is published once",
         ignores_the_token, LAST_ID, Expect(up_to(3), [False], once=True, said="circle")),
    Case("B2 V1", "the token is always `AAA`", "the run fails at the first token that comes back", repeats("AAA"),
         CURSOR, Expect(up_to(4), [False], once=True, said="circle.*AAA")),
    Case("B3 V2", "the tokens are A, B, A, B …", "the run fails at the first token that comes back",
         repeats("A", "B"), CURSOR, Expect(up_to(6), [False], once=True, said="circle")),
    Case("B4", "the next link of page 2 is page 2", "the run fails, it does not end as if all were read",
         links_to_itself, NEXT_URL, Expect(up_to(4), [False], once=True, said="circle")),
    *(
        Case(f"B5 {style}", f"one row a page, `{style}`", "all five rows", five_one_by_one(style),
             one_at_a_time(ask), Expect(up_to(5), once=True))
        for style, ask in STYLES.items()
    ),
    Case("B7 page", "pages of 2, 1, 2 rows, though 2 were asked for", "a short page is no end",
         short_pages("page", [2, 1, 2]), may_be_short(PAGE), Expect(up_to(5))),
    Case("B7 offset", "pages of 2, 1, 2 rows, though 2 were asked for", "a short page is no end",
         short_pages("offset", [2, 1, 2]), may_be_short(OFFSET), Expect(up_to(5))),
    Case("B8 V3", "an empty page with a token, then a full one", "the listing goes on", an_empty_page_in_the_middle,
         CURSOR, Expect(up_to(4))),
    Case("B8", "empty pages with new tokens for ever", "the run fails after a bounded number of them", empty_for_ever,
         CURSOR, Expect([], [False], said="max_empty_pages")),
    Case("B9 V8 offset", "gives 2 rows a page although 3 are asked for, `offset`",
         "offsets step by the rows that came; no row is lost", capped("offset"),
         replace(OFFSET, paging={**OFFSET.paging, "size": 3}), Expect(up_to(5))),
    Case("B9 V8 page", "gives 2 rows a page although 3 are asked for, `page`", "no row is lost", capped("page"),
         replace(PAGE, paging={**PAGE.paging, "size": 3}), Expect(up_to(5))),
    *(
        Case(f"B11 {name}", f"nothing is configured about pages, and the answer has {name}",
             "all pages, or a warning that there are more", has_a_next_page(body, header),
             replace(SINGLE, records="value", paging={"style": "none", "guess": True}),
             Expect(up_to(2), full=up_to(4), told="looks paginated|there may be more|more pages"))
        for name, body, header in (
            ("a Link header", {}, "link"), ("`@odata.nextLink`", {"@odata.nextLink": "URL"}, ""),
            ("`next`", {"next": "URL"}, ""), ("`has_more: true`", {"has_more": True}, ""),
        )
    ),
    *(
        Case(f"B12 {kind} {name}", f"the last page's {kind} is {name}", "the end, without another request",
             ends_with(**token), ask, Expect(up_to(2), once=True))
        for kind, ask, member in (
            ("next URL", NEXT_URL, "next"), ("token", Ask({**PAGING["cursor"], "more": ""}), "next_cursor"),
        )
        for name, token in (
            ("null", {member: None}), ("absent", {}), ('""', {member: ""}),
            ("false", {member: False}),
        )
    ),
    Case("16", "says that there is more, and gives no token", "the run fails", says_more_without_a_token, CURSOR,
         Expect([], [False], said="has_more")),
    Case("X19 grows", "the total grows from 4 to 6 while it is read", "the newest total counts", total_moves([4, 6]),
         replace(OFFSET, paging={**OFFSET.paging, "total": "total"}), Expect(up_to(6))),
    Case("X19 shrinks", "the total shrinks from 8 to 6 while it is read", "all rows that are there, and an end",
         total_moves([8, 8, 6]), replace(OFFSET, paging={**OFFSET.paging, "total": "total"}), Expect(up_to(6))),
)  # fmt: skip
