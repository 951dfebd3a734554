"""How listings go on, end, and fail to end."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.case import (
    CURSOR,
    LINK,
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
from tests.harness import faults
from tests.harness.listings import Answer, Json, Request, Style

STYLES: dict[Style, Ask] = {"link": LINK, "next_url": NEXT_URL, "cursor": CURSOR, "page": PAGE, "offset": OFFSET}
KEYSET = Ask({"style": "keyset", "fields": {"updated_at": "after_time", "id": "after_id"}})
CAPPED = replace(CURSOR, paging={**CURSOR.paging, "cap": 4}, since=Since(ascending=True))
LAST_ID = Ask({"style": "cursor", "at": "last.id", "param": "starting_after", "more": "has_more"})


# ---- no end


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


# ---- ends that are none


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


def first_page_is_named(stage: Stage) -> Run:
    """Without a number it gives another page than number 1."""
    pages = {"1": rows(2), "2": rows(2, first=3)}
    stage.api.routes["/events"] = lambda request: json_answer(
        request, {"data": pages.get(request.query.get("page", "2"), [])}
    )
    yield None
    stage.must(stage.asked[0].query.get("page") == "1", "the first request has no page number")


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


# ---- where the next page is


def link_header(written: str) -> Play:
    """Three pages; `written` holds URL where the next page's goes."""

    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            page = int(request.query.get("p", 1))
            link = {"link": written.replace("URL", f"{request.origin}/events?p={page + 1}")} if page < 3 else {}
            return json_answer(request, rows(2, first=page * 2 - 1), **link)

        stage.api.routes["/events"] = answer
        yield None

    return play


def relative_link(written: str) -> Play:
    def play(stage: Stage) -> Run:
        def answer(request: Request) -> Answer:
            page = int(request.query.get("p", 1))
            told = written.replace("N", str(page + 1)) if page < 3 else None
            return json_answer(request, {"data": rows(2, first=page * 2 - 1), "next": told})

        stage.api.routes["/v1/events"] = answer
        yield None

    return play


def token_in_a_header(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        page = int(request.query.get("cursor", 1))
        headers = {"x_next": str(page + 1)} if page < 3 else {}
        return json_answer(request, {"data": rows(2, first=page * 2 - 1)}, **headers)

    stage.api.routes["/events"] = answer
    yield None


def token_in_the_last_record(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        after = int(request.query.get("starting_after", "r0")[1:])
        return json_answer(request, {"data": rows(6)[after : after + 2], "has_more": after + 2 < 6})

    stage.api.routes["/events"] = answer
    yield None


ODD = "a+b/c==&x=ü %2F"


def odd_token(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        found = request.query.get("cursor")
        if found is None:
            return json_answer(request, {"data": rows(2), "next_cursor": ODD, "has_more": True})
        data = rows(2, first=3) if found == ODD else []
        return json_answer(request, {"data": data, "next_cursor": None, "has_more": False})

    stage.api.routes["/events"] = answer
    yield None


def says_more_without_a_token(stage: Stage) -> Run:
    answered(stage, {"data": rows(2), "next_cursor": None, "has_more": True})
    yield None


def one_time_for_all(stage: Stage) -> Run:
    """All rows share one time; a page holds those behind the last time and id."""
    listed = [row(n, at=7) for n in range(1, 7)]

    def answer(request: Request) -> Answer:
        time, id = request.query.get("after_time", ""), request.query.get("after_id", "")
        behind = [one for one in listed if (str(one["updated_at"]), str(one["id"])) > (time, id)]
        return json_answer(request, {"data": behind[:2]})

    stage.api.routes["/events"] = answer
    yield None


def continues_by_an_object(stage: Stage) -> Run:
    """What asks for the next page is an object, of which every key is a parameter."""

    def answer(request: Request) -> Answer:
        at = int(request.query.get("from", "0"))
        more = {"continue": {"from": str(at + 2), "continue": "-||"}} if at < 4 else {}
        known = "from" not in request.query or request.query.get("continue") == "-||"
        return json_answer(request, {"data": rows(6)[at : at + 2] if known else [], **more})

    stage.api.routes["/events"] = answer
    yield None


def token_in_the_body(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        at = int(json.loads(request.body or b"{}").get("page", {}).get("after", 0))
        token = str(at + 2) if at < 4 else None
        body = {"data": rows(6)[at : at + 2], "next_cursor": token, "has_more": token is not None}
        return json_answer(request, body if request.method == "POST" else {"error": "POST"})

    stage.api.routes["/events"] = answer
    yield None


def rows_go_while_it_is_listed(stage: Stage) -> Run:
    """After page 1 a row of it is deleted: those behind it move up by one."""
    listed = rows(7)

    def answer(request: Request) -> Answer:
        at = int(request.query.get("offset", 0))
        page = listed[at : at + int(request.query.get("limit", 2))]
        if listed[0]["id"] == "r1":
            del listed[0]
        return json_answer(request, {"data": page})

    stage.api.routes["/events"] = answer
    yield None


def next_page_on_an_inner_host(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        page = int(request.query.get("p", 1))
        told = f"http://api.internal.invalid:8080/events?p={page + 1}" if page < 3 else None
        return json_answer(request, {"data": rows(2, first=page * 2 - 1), "next": told})

    stage.api.routes["/events"] = answer
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


def at_most_so_often(stage: Stage) -> Run:
    stage.serve(rows(8))
    yield None
    gaps = [b - a for a, b in zip(stage.times, stage.times[1:], strict=False)]
    stage.must(sum(gaps) >= (len(gaps) - 1) / 10, f"{len(gaps) + 1} requests in {sum(gaps):.2f} s")


def lists_everything(style: Style) -> Play:
    def play(stage: Stage) -> Run:
        stage.serve(rows(5), style)
        yield None

    return play


CASES = (
    *(
        Case(f"paging {style}", f"lists five rows in pages of two, `{style}`", "all of them, and the end is seen",
             lists_everything(style), ask, Expect(up_to(5), once=True))
        for style, ask in STYLES.items()
    ),
    Case("paging header", "the token is in a header of the answer", "all pages", token_in_a_header,
         Ask({"style": "cursor", "at": "header.X-Next", "param": "cursor"}), Expect(up_to(6))),
    Case("paging last", "the token is the id of the page's last record", "all pages", token_in_the_last_record,
         LAST_ID, Expect(up_to(6))),
    Case("rule 4", "a token of reserved characters", "it comes back byte for byte", odd_token, CURSOR,
         Expect(up_to(4))),
    Case("B13 keyset", "all rows have one time; a page is what comes behind a time and an id", "all rows",
         one_time_for_all, KEYSET, Expect(up_to(6), once=True)),
    Case("paging object", "the next request is told by an object of parameters", "all pages", continues_by_an_object,
         Ask({"style": "object", "at": "continue"}), Expect(up_to(6))),
    Case("paging body", "the token goes into the body of a POST", "all pages", token_in_the_body,
         Ask({"style": "cursor", "at": "next_cursor", "more": "has_more", "body": "page.after"}, method="POST"),
         Expect(up_to(6))),
    Case("paging moves", "a row is deleted while it is listed by offset", "the row that moved up is not lost",
         rows_go_while_it_is_listed, OFFSET, Expect(up_to(7)),
         keys={"paginate": {"type": "offset", "size_param": "limit", "size": 3, "overlap": 1}}),
    Case("paging inner", "names its next page on a host that only it can reach",
         "its path and query, on the host that we ask", next_page_on_an_inner_host, NEXT_URL, Expect(up_to(6)),
         keys={"paginate": {"type": "next_url", "from": "$.next", "rebase": True}}),
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
    Case("rate", "takes ten requests a second", "no more of them leave", at_most_so_often, replace(CURSOR, rate=10),
         Expect(up_to(8)), environment={"REAL_WAITS": "1"}),
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
    Case("B16", "its default page is another than page 1", "the first request names its page", first_page_is_named,
         replace(PAGE, paging={"style": "page", "param": "page", "start": 1}), Expect(up_to(4))),
    Case("V13", "the next URL is `?p=2`", "resolved against the URL of the answer", relative_link("?p=N"),
         replace(NEXT_URL, path="/v1/events"), Expect(up_to(6))),
    Case("V13 path", "the next URL is `/v1/events?p=2`", "resolved against the host", relative_link("/v1/events?p=N"),
         replace(NEXT_URL, path="/v1/events"), Expect(up_to(6))),
    *(
        Case(f"Link {number}", f"`Link: {written}`", "it leads on", link_header(written), LINK, Expect(up_to(6)))
        for number, written in enumerate(
            ('<URL>; rel="next prefetch"', '<URL>; REL="next"', "<URL>; rel=next", '<URL>; rel="next",',
             '<URL>; title="a, b; c"; rel="next"', '</first>; rel="first", <URL>; rel="next"'), 1)
    ),
    Case("16", "says that there is more, and gives no token", "the run fails", says_more_without_a_token, CURSOR,
         Expect([], [False], said="has_more")),
    Case("X19 grows", "the total grows from 4 to 6 while it is read", "the newest total counts", total_moves([4, 6]),
         replace(OFFSET, paging={**OFFSET.paging, "total": "total"}), Expect(up_to(6))),
    Case("X19 shrinks", "the total shrinks from 8 to 6 while it is read", "all rows that are there, and an end",
         total_moves([8, 8, 6]), replace(OFFSET, paging={**OFFSET.paging, "total": "total"}), Expect(up_to(6))),
)  # fmt: skip
