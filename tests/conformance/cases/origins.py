"""Where credentials must not go: next links, redirects and hosts that an answer names."""

from collections.abc import Callable
from dataclasses import replace

from tests.conformance.case import (
    LINK,
    NEXT_URL,
    TOKEN,
    Ask,
    Case,
    Change,
    Expect,
    Play,
    Run,
    Stage,
    json_answer,
    rows,
    up_to,
)
from tests.harness import faults
from tests.harness.listings import Answer, Request

BEARER = {"bearer": TOKEN}
HEADER = {"header": "X-Api-Key", "value": TOKEN}
QUERY = {"query": "api_key", "value": TOKEN}
Lead = Callable[[Request, str], Answer]
"""An answer that leads to the other host's list."""


def elsewhere(lead: Lead) -> Play:
    def play(stage: Stage) -> Run:
        there = f"http://localhost:{stage.other.port}/events?p=2"
        stage.api.routes["/events"] = lambda request: lead(request, there)
        answer = rows(2, first=3)
        bare = stage.other.routes
        bare["/events"] = lambda request: json_answer(
            request, answer if lead is by_link else {"data": answer, "next": None}
        )
        yield None
        stage.must(not stage.other.requests, "asks the other host")

    return play


def by_next_url(request: Request, there: str) -> Answer:
    return json_answer(request, {"data": rows(2), "next": there})


def by_link(request: Request, there: str) -> Answer:
    return json_answer(request, rows(2), link=f'<{there}>; rel="next"')


def by_redirect(request: Request, there: str) -> Answer:
    """With the query that was sent, as servers behind a proxy do."""
    query = request.target.partition("?")[2]
    return Answer(request, status=302, headers=(("Location", f"{there}&{query}"),), body=b"")


def allowed(lead: Lead) -> Play:
    """As `elsewhere`, and the configuration allows that host."""
    play = elsewhere(lead)

    def with_permission(stage: Stage) -> Run:
        for _ in play(stage):
            yield Change(above={"allow_hosts": [f"localhost:{stage.other.port}"]})
        stage.complaints.clear()
        stage.must(bool(stage.other.requests), "does not ask the host that is allowed")

    return with_permission


def at_home(stage: Stage) -> Run:
    stage.api.serve("moved", rows(2), style="next_url")
    stage.api.routes["/events"] = lambda request: faults.redirect("/moved")(Answer(request))
    yield None
    stage.must(stage.asked[-1].headers.get("authorization") == f"Bearer {TOKEN}", "comes without its credentials")


def round_and_round(stage: Stage) -> Run:
    stage.api.routes["/events"] = lambda request: faults.redirect("/events")(Answer(request))
    yield None
    stage.must(len(stage.asked) <= 40, f"{len(stage.asked)} requests before it gives up")


def kept(ask: Ask, auth: dict[str, str]) -> Ask:
    return replace(ask, auth=auth)


PAGE_1 = Expect(up_to(2), [False], said="refused to follow")
NOTHING = Expect([], [False], said="refused to follow")

CASES = (
    *(
        Case(f"V7 {name}, {way}", f"names another host as the next page ({way}); we have a {name}",
             "not asked, the run fails", elsewhere(lead), kept(ask, auth), PAGE_1)
        for way, lead, ask in (("in the body", by_next_url, NEXT_URL), ("Link header", by_link, LINK))
        for name, auth in (("bearer token", BEARER), ("key in a header", HEADER), ("key in the query", QUERY))
    ),
    *(
        Case(f"X3 {name}", f"redirects to another host; we have a {name}", "not asked, the run fails",
             elsewhere(by_redirect), kept(NEXT_URL, auth), NOTHING)
        for name, auth in (("bearer token", BEARER), ("key in a header", HEADER), ("key in the query", QUERY))
    ),
    *(
        Case(f"allowed {name}", f"names a host that we allow as the next page; we have a {name}",
             "asked, without credentials", allowed(by_next_url), kept(NEXT_URL, auth), Expect(up_to(4)))
        for name, auth in (("bearer token", BEARER), ("key in a header", HEADER), ("key in the query", QUERY))
    ),
    *(
        Case(f"X3 downgrade, {name}", f"speaks https, and names http as the next page; we have a {name}",
             "not asked: nothing that was said over https is said in the clear", elsewhere(by_next_url),
             kept(NEXT_URL, auth), PAGE_1, secure=True)
        for name, auth in (("bearer token", BEARER), ("key in a header", HEADER))
    ),
    Case("X3 at home", "redirects within its host", "followed, with credentials", at_home, kept(NEXT_URL, BEARER),
         Expect(up_to(2))),
    Case("X3 circle", "redirects to itself", "the run fails", round_and_round, NEXT_URL,
         Expect([], [False], said="redirects")),
)  # fmt: skip
