"""Lists below the records of another list: each with a listing and a place of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote

from tests.conformance.case import CURSOR, PAGING, Case, Expect, Kill, Play, Run, Since, Stage, row, rows, up_to
from tests.harness import faults
from tests.harness.listings import Answer, Json, Listing, Request, record

Children = Mapping[str, Sequence[Json]]


def serve(stage: Stage, children: Children) -> dict[str, Listing]:
    """Parents in pages of two at /parents, the children of each in pages of two at /below/ID/events."""
    names = [{"id": name} for name in children]
    stage.api.serve("parents", names, style="cursor", page_size=2)
    lists = {name: Listing([record(one) for one in found], "cursor", 2) for name, found in children.items()}
    for name, listing in lists.items():
        stage.api.routes[f"/below/{name}/events"] = listing.answer
    return lists


def listed(children: Children) -> Play:
    def play(stage: Stage) -> Run:
        serve(stage, children)
        yield None

    return play


def encoded(stage: Stage) -> Run:
    """Ids of parents hold what a path must not hold as it is."""
    names = ["a/b", "c d", "e?f"]
    stage.api.serve("parents", [{"id": name} for name in names], style="cursor")
    for n, name in enumerate(names):
        children = Listing([record(row(n + 1))], "cursor", 2)
        for path in {request_path(name), request_path(name).replace("%3F", "%3f")}:
            stage.api.routes[path] = children.answer
    yield None


def request_path(name: str) -> str:
    quoted = "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in name)
    assert unquote(quoted) == name
    return f"/below/{quoted}/events"


def places_of_their_own(stage: Stage) -> Run:
    """The second run finds a row of B that is older than what A has come to."""
    lists = serve(stage, {"A": [row(1, at=30)], "B": [row(2, at=5)]})
    yield None
    lists["B"].add(row(3, at=7))
    yield None


def one_less(stage: Stage) -> Run:
    lists = serve(stage, {"A": rows(2), "B": rows(1, first=3), "C": rows(2, first=4)})
    yield None
    lists["A"].remove("r2")
    stage.api.serve("parents", [{"id": "A"}, {"id": "C"}], style="cursor", page_size=2)
    yield None


def one_is_gone(stage: Stage) -> Run:
    serve(stage, {"A": rows(2), "B": [], "C": rows(2, first=3)})
    stage.api.routes["/below/B/events"] = lambda request: faults.status(404)(Answer(request))
    yield None


def killed(stage: Stage) -> Run:
    serve(stage, {"A": rows(4), "B": rows(4, first=5), "C": rows(2, first=9)})
    yield Kill(6)
    yield None


def one_fails(stage: Stage) -> Run:
    """Then it does not."""
    lists = serve(stage, {"A": rows(4), "B": rows(4, first=5), "C": rows(2, first=9)})
    broken = [True]

    def answer(request: Request) -> Answer:
        meant = lists["B"].answer(request)
        return faults.status(500)(meant) if broken[0] and "cursor" in request.query else meant

    stage.api.routes["/below/B/events"] = answer
    yield None
    broken[0] = False
    yield None


PARENTS = {"path": "/parents", "paging": PAGING["cursor"]}
CHILDREN = replace(CURSOR, path="/below/{parent.id}/events", parent=PARENTS)

CASES = (
    Case("B10", "lists children by parent: none, then three in two pages, then two; parents in two pages",
         "all children of all parents", listed({"A": [], "B": rows(3), "C": rows(2, first=4)}), CHILDREN,
         Expect(up_to(5), once=True)),
    Case("B10 encoded", "has parents whose ids hold `/`, a space and `?`", "they are encoded in the path", encoded,
         CHILDREN, Expect(up_to(3))),
    Case("B66", "a row of one parent is older than what another has come to", "every parent has its own place",
         places_of_their_own, replace(CHILDREN, since=Since()), Expect(up_to(3), once=True)),
    Case("B66 gone", "no longer lists a row of one of the parents, nor another parent",
         "both are said to be gone", one_less, replace(CHILDREN, deletes="sweep"),
         Expect(up_to(5), deleted=["A|r2", "B|r3"]), peers=False),
    Case("parent 404", "answers 404 for one parent, and we know it", "the others are read", one_is_gone,
         replace(CHILDREN, parent={**PARENTS, "skip_on": [404]}), Expect(up_to(4))),
    Case("B70 failed", "fails for one of three parents, and later does not", "no success, and no row is lost",
         one_fails, CHILDREN, Expect(up_to(10), [False, True])),
    Case("B70 killed", "(the tool is killed amid the children)", "the next run reads all that is missing", killed,
         CHILDREN, Expect(up_to(10), [None, True])),
)  # fmt: skip
