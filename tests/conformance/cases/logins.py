"""Access tokens: fetched, kept, renewed before their end and after a 401, and rotated."""

import hashlib
import hmac
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qs

from tests.conformance.case import (
    CURSOR,
    REFRESH_TOKEN,
    TOKEN,
    Case,
    Expect,
    Play,
    Run,
    Stage,
    json_answer,
    rows,
    up_to,
)
from tests.harness import faults
from tests.harness.faults import Fault
from tests.harness.listings import Answer, Request

CLIENT = {"token_path": "/token", "grant": "client_credentials", "client_id": "ingest", "value": TOKEN}
LOGIN = {**CLIENT, "grant": "refresh_token", "refresh_token": REFRESH_TOKEN}
UNKNOWN = faults.status(401)
SHORT = 1  # seconds that a token lives


class Issuer:
    """Gives access tokens `at1`, `at2`, …; `good` says which of them a request may carry."""

    def __init__(self, stage: Stage, expires_in: int = 3600) -> None:
        self.given = itertools.count(1)
        self.issued: dict[str, float] = {}
        self.expires_in = expires_in
        self.refused: set[str] = set()
        stage.api.routes["/token"] = self.answer

    def answer(self, request: Request) -> Answer:
        return json_answer(request, self.token())

    def token(self) -> dict[str, object]:
        name = f"at{next(self.given)}"
        self.issued[name] = time.monotonic()
        return {"access_token": name, "token_type": "Bearer", "expires_in": self.expires_in}

    def good(self, request: Request) -> bool:
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        return name in self.issued and name not in self.refused and not self.old(name)

    def old(self, name: str) -> bool:
        return time.monotonic() > self.issued[name] + self.expires_in


def guarded(
    stage: Stage,
    issuer: Issuer,
    before: Callable[[Request], Answer | None] = lambda request: None,
    refusal: Fault = UNKNOWN,
) -> None:
    """Eight rows in four pages for who carries a good token; others are refused."""
    listing = stage.serve(rows(8))

    def answer(request: Request) -> Answer:
        if (first := before(request)) is not None:
            return first
        meant = listing.answer(request)
        return meant if issuer.good(request) else refusal(meant)

    stage.api.routes["/events"] = answer


def one_token(stage: Stage) -> Run:
    guarded(stage, Issuer(stage))
    yield None
    fetched = sum(request.path == "/token" for request in stage.asked)
    stage.must(fetched == 1, f"{fetched} tokens for one listing")


def revoked(times: int, refusal: Fault = UNKNOWN) -> Play:
    """On page 3 the token is no longer good, and so often again."""

    def play(stage: Stage) -> Run:
        issuer = Issuer(stage)
        left = itertools.count(times, -1)

        def end_it(request: Request) -> None:
            if request.query.get("cursor") == "t4" and next(left) > 0:
                issuer.refused.add(request.headers["authorization"].removeprefix("Bearer "))

        guarded(stage, issuer, end_it, refusal)
        yield None
        stage.must(len(stage.asked) <= 12, f"{len(stage.asked)} requests before it gives up")

    return play


def expires_while_it_waits(stage: Stage) -> Run:
    issuer = Issuer(stage, SHORT)
    waits = iter([faults.rate_limited(str(SHORT + 1))])
    late: list[str] = []

    def slow_down(request: Request) -> Answer | None:
        if not issuer.good(request):
            late.append(request.target)
        fault = next(waits, None) if "cursor" in request.query else None
        return fault(Answer(request)) if fault else None

    guarded(stage, issuer, slow_down)
    yield None
    stage.must(not late, "sends a token that has expired")


def rotates(stage: Stage) -> Run:
    """Each refresh token is good once; the answer holds the next one."""
    issuer = Issuer(stage)
    wanted = [REFRESH_TOKEN]

    def answer(request: Request) -> Answer:
        sent = parse_qs(request.body.decode()).get("refresh_token", [""])[0]
        if sent != wanted[-1]:
            return faults.status(400, b'{"error":"invalid_grant"}')(Answer(request))
        wanted.append(f"{REFRESH_TOKEN}-{len(wanted)}")
        return json_answer(request, {**issuer.token(), "refresh_token": wanted[-1]})

    stage.api.routes["/token"] = answer
    guarded(stage, issuer)
    yield None
    issuer.refused.update(issuer.issued)
    yield None


def session_ends(stage: Stage) -> Run:
    """A login gives a session; on page 3 it has ended."""
    issuer = Issuer(stage)
    stage.api.routes["/login"] = lambda request: json_answer(request, {"token": issuer.token()["access_token"]})
    listing = stage.serve(rows(8))

    def answer(request: Request) -> Answer:
        session = request.headers.get("x-session", "")
        if request.query.get("cursor") == "t4" and session == "at1":
            issuer.refused.add(session)
        good = session in issuer.issued and session not in issuer.refused
        meant = listing.answer(request)
        return meant if good else faults.status(401)(meant)

    stage.api.routes["/events"] = answer
    yield None
    stage.must(sum(request.path == "/login" for request in stage.asked) <= 2, "logs in again and again")


def signed(stage: Stage) -> Run:
    """Page 2 fails the first time."""
    listing = stage.serve(rows(4))
    broken = iter([True])

    def answer(request: Request) -> Answer:
        stamp, sent = request.headers.get("x-timestamp", ""), request.headers.get("x-signature", "")
        text = f"{request.method}\n{request.target}\n{stamp}"
        right = hmac.new(TOKEN.encode(), text.encode(), hashlib.sha256).hexdigest()
        meant = listing.answer(request)
        if sent != right:
            return faults.status(401)(meant)
        return faults.status(503)(meant) if "cursor" in request.query and next(broken, False) else meant

    stage.api.routes["/events"] = answer
    yield None


CASES = (
    Case("B44", "hands out access tokens", "one is fetched for all pages", one_token, replace(CURSOR, auth=CLIENT),
         Expect(up_to(8))),
    Case("B45", "answers page 3 with 401 although the token has not expired", "a new token, the same page again",
         revoked(1), replace(CURSOR, auth=CLIENT), Expect(up_to(8))),
    Case("B45 always", "answers page 3 with 401, whatever the token", "one new token, then the run fails",
         revoked(50), replace(CURSOR, auth=CLIENT), Expect(up_to(4), [False], said="401")),
    Case("B45 in words", "answers page 3 with 400 and `token_expired`, and we know it",
         "a new token, the same page again", revoked(1, faults.status(400, b'{"error":"token_expired"}')),
         replace(CURSOR, auth=CLIENT, errors=[{"status": 400, "do": "refresh_auth"}]), Expect(up_to(8))),
    Case("B43", "asks to wait for longer than the token lives", "the next try carries a new token",
         expires_while_it_waits, replace(CURSOR, auth=CLIENT), Expect(up_to(8)), environment={"REAL_WAITS": "1"}),
    Case("B44 rotation", "gives a new refresh token with every use, and ends the one before",
         "the newest is kept for the next run", rotates, replace(CURSOR, auth=LOGIN), Expect(up_to(8))),
    Case("session", "ends the session that a login gave, on page 3", "one login more, the same page again",
         session_ends, replace(CURSOR, auth={"login_path": "/login", "send": "X-Session", "value": TOKEN}),
         Expect(up_to(8))),
    Case("signature", "wants every request signed", "every try is signed", signed,
         replace(CURSOR, auth={"sign": "{method}\n{target}\n{timestamp}"}), Expect(up_to(4))),
)  # fmt: skip
