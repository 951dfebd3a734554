"""What the API of a chaos run lists: the present state of records that keep coming and changing, the latest last.

A change moves a record to the end under a new version, so a version that nobody asked for in time is never served. The
place in a page's token is one in the order of changes: no row is skipped or served twice because others moved.
`updated_at` is the instant of the change, in microseconds, and of each change another one.
"""

import json
import random
import time
from bisect import bisect_left
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.harness.listings import Answer, Listing, Record, Request, record

CHANGED = 0.3  # share of the changes that is to a record that exists
KEYS = 53


class Made(NamedTuple):
    """A version of a record. `at`: microseconds since 1970."""

    id: str
    sha256: str
    at: int


class Feed(Listing):
    """`made`: a file that gets a line for each version, before anyone is served it."""

    def __init__(self, made: Path, page_size: int, seed: int) -> None:
        super().__init__([], "next_url", page_size)
        self._made = made.open("ab", buffering=0)
        self._chance = random.Random(seed)
        self._rows: list[Record | None] = []  # in the order of changes; None: changed again since
        self._ats: list[int] = []  # of each row
        self._places: dict[str, int] = {}  # id → its row

    @property
    def head(self) -> int:
        """The instant of the last change."""
        return self._ats[-1] if self._ats else 0

    def close(self) -> None:
        self._made.close()

    def grow(self, count: int) -> None:
        lines = []
        for _ in range(count):
            changes = bool(self._places) and self._chance.random() < CHANGED
            n = self._chance.randrange(len(self._places)) if changes else len(self._places)
            made = self._make(n)
            lines.append(json.dumps(made._asdict()).encode() + b"\n")
        self._made.write(b"".join(lines))

    def _make(self, n: int) -> Made:
        id = f"evt_{n:07d}"
        at = max(time.time_ns() // 1000, self.head + 1)
        row = record(
            {
                "id": id,
                "account": f"acct_{n % KEYS}",
                "updated_at": datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "amount": 2**53 + n,
                "note": "x" * self._chance.randrange(200),
            }
        )
        if (before := self._places.get(id)) is not None:
            self._rows[before] = None
        self._places[id] = len(self._rows)
        self._rows.append(row)
        self._ats.append(at)
        return Made(id, row.sha256, at)

    def answer(self, request: Request) -> Answer:
        query = request.query
        first = int(query["token"].removeprefix("t")) if "token" in query else 0
        if since := query.get("since"):
            first = max(first, bisect_left(self._ats, micros(since)))
        rows: list[Record] = []
        n = first
        while n < len(self._rows) and len(rows) < self.page_size:
            if (row := self._rows[n]) is not None:
                rows.append(row)
            n += 1
        token = f"t{n}" if n < len(self._rows) else None  # the last row is always one
        return Answer(request, self.style, tuple(rows), first, self.page_size, len(self._rows), token)


def micros(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round(moment.timestamp() * 1e6)


def made(path: Path) -> list[Made]:
    return [Made(**json.loads(line)) for line in path.read_text().splitlines()]
