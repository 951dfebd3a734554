"""How a listing goes on: where the next page is, and how it is asked for."""

import json
from dataclasses import replace

from tests.conformance.case import (
    CURSOR,
    LINK,
    NEXT_URL,
    OFFSET,
    PAGE,
    Ask,
    Case,
    Expect,
    Play,
    Run,
    Stage,
    json_answer,
    row,
    rows,
    up_to,
)
from tests.harness.listings import Answer, Request, Style

STYLES: dict[Style, Ask] = {"link": LINK, "next_url": NEXT_URL, "cursor": CURSOR, "page": PAGE, "offset": OFFSET}
KEYSET = Ask({"style": "keyset", "fields": {"updated_at": "after_time", "id": "after_id"}})
LAST_ID = Ask({"style": "cursor", "at": "last.id", "param": "starting_after", "more": "has_more"})
ODD = "a+b/c==&x=ü %2F"


def first_page_is_named(stage: Stage) -> Run:
    """Without a number it gives another page than number 1."""
    pages = {"1": rows(2), "2": rows(2, first=3)}
    stage.api.routes["/events"] = lambda request: json_answer(
        request, {"data": pages.get(request.query.get("page", "2"), [])}
    )
    yield None
    stage.must(stage.asked[0].query.get("page") == "1", "the first request has no page number")


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


def odd_token(stage: Stage) -> Run:
    def answer(request: Request) -> Answer:
        found = request.query.get("cursor")
        if found is None:
            return json_answer(request, {"data": rows(2), "next_cursor": ODD, "has_more": True})
        data = rows(2, first=3) if found == ODD else []
        return json_answer(request, {"data": data, "next_cursor": None, "has_more": False})

    stage.api.routes["/events"] = answer
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
    Case("rate", "takes ten requests a second", "no more of them leave", at_most_so_often, replace(CURSOR, rate=10),
         Expect(up_to(8)), environment={"REAL_WAITS": "1"}),
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
)  # fmt: skip
