"""Reports that an API makes when it is asked to: each costs it something, and takes its time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.conformance.case import SINGLE, TOKEN, Case, Change, Expect, Kill, Play, Run, Stage, json_answer, rows, up_to
from tests.harness.listings import Answer, Json, Request

SIGNED = "sig=0123456789abcdef0123456789abcdef"


class Office:
    """POST /reports orders one; /reports/ID says RUNNING twice, then DONE, or what `ends` says of it by its number;
    its file is where `url` says."""

    def __init__(self, stage: Stage, made: Sequence[Json], ends: Mapping[int, str] | None = None) -> None:
        self._api, self._rows, self._ends = stage.api, made, ends or {}
        self.home = ""
        self.orders = 0
        self.gone: set[str] = set()  # files
        stage.api.routes["/reports"] = self._ordered

    def _ordered(self, request: Request) -> Answer:
        self.orders += 1
        name, ends = f"j{self.orders}", self._ends.get(self.orders, "DONE")
        left = ["RUNNING", "RUNNING"]

        def asked(request: Request) -> Answer:
            status = left.pop() if left else ends
            url = f"{self.home or self._api.url}/files/{name}?{SIGNED}"
            return json_answer(request, {"id": name, "status": status, **({"url": url} if status == "DONE" else {})})

        self._api.routes[f"/reports/{name}"] = asked
        self._api.routes[f"/files/{name}"] = lambda request: self.file(request, name)
        return json_answer(request, {"id": name})

    def file(self, request: Request, name: str) -> Answer:
        if name in self.gone:
            return Answer(request, status=410, body=b"{}")
        return json_answer(request, json.dumps({"data": self._rows}).encode())


def made(ends: Mapping[int, str] | None = None, *, orders: int = 1) -> Play:
    def play(stage: Stage) -> Run:
        office = Office(stage, rows(4), ends)
        yield None
        stage.must(office.orders == orders, f"orders {office.orders} reports")

    return play


def killed(stage: Stage) -> Run:
    office = Office(stage, rows(4))
    yield Kill(3)
    yield None
    stage.must(office.orders == 1, "orders another report")


def lost(stage: Stage) -> Run:
    office = Office(stage, rows(4))
    office.gone = {"j1"}
    yield None


def elsewhere(stage: Stage) -> Run:
    office = Office(stage, rows(4))
    office.home = f"http://localhost:{stage.other.port}"
    stage.other.routes["/files/j1"] = lambda request: office.file(request, "j1")
    yield Change(above={"allow_hosts": [f"localhost:{stage.other.port}"]})
    asked = stage.other.requests
    stage.must(bool(asked) and all(request.target.endswith(SIGNED) for request in asked), "does not ask for the file")


REPORT = replace(SINGLE, path="/reports", method="POST", job=True)

CASES = (
    Case("report", "makes a report when it is asked to, and hands it out when it is done",
         "ordered once, waited for, and read", made(), REPORT, Expect(up_to(4))),
    Case("report killed", "(the tool is killed while it waits for a report)", "the next run goes on with that report",
         killed, REPORT, Expect(up_to(4), [None, True])),
    Case("report failed", "says that it could not make a report, and makes the next one",
         "another is ordered", made({1: "FAILED"}, orders=2), REPORT, Expect(up_to(4))),
    Case("report never", "says of every report that it could not be made", "not a success",
         lambda stage: _never(stage), REPORT, Expect([], [False], said="FAILED")),
    Case("report lost", "has the file of a finished report no longer (410)", "another is ordered", lost, REPORT,
         Expect(up_to(4))),
    Case("report elsewhere", "names the file of a report by a signed URL of another host",
         "it is asked for as it is, without credentials", elsewhere, replace(REPORT, auth={"bearer": TOKEN}),
         Expect(up_to(4))),
)  # fmt: skip


def _never(stage: Stage) -> Run:
    Office(stage, rows(4), dict.fromkeys(range(1, 20), "FAILED"))
    yield None
