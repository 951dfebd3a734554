"""Dead letters that cannot be written at once are tried again, for as long as their partitions are ours."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from consumers.burials import Burials
from consumers.deadletter import Bad
from ingest.errors import BadRecord, ConfigError, IngestError, LogUnavailable, Superseded
from ingest.eventlog import Span
from ingest.eventlog.kafka.records import KafkaRecord

SPANS = [Span("orders", 1, 0, 5), Span("orders", 2, 0, 7)]
LETTERS = [Bad(KafkaRecord("orders", 1, 4, 7, b"k", b"{", ()), BadRecord("no JSON", stage="write"))]


class Ground:
    """Takes letters as the test wants."""

    def __init__(self) -> None:
        self.fails_with: IngestError | None = None
        self.owned = {1, 2, 3}
        self.tries = asyncio.Semaphore(0)
        self.moved: list[Span] = []
        self.burials = Burials("g", self._bury, self._move, lambda: self.owned)
        self.stopping = asyncio.create_task(asyncio.Event().wait())

    async def begin(self) -> bool:
        return await self.burials.begin(LETTERS, SPANS, self.stopping)

    async def _bury(self, letters: Sequence[Bad]) -> None:
        self.tries.release()
        if self.fails_with is not None:
            raise self.fails_with

    async def _move(self, spans: Sequence[Span]) -> None:
        self.moved += spans


@pytest_asyncio.fixture
async def ground(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    monkeypatch.setattr("consumers.burials.GRACE", 0.01)
    monkeypatch.setattr("consumers.burials.RETRY_CAP", 0.01)
    ground = Ground()
    yield ground
    ground.stopping.cancel()
    await ground.burials.close()


async def test_letters_that_are_written_at_once_hold_nothing_up(ground: Ground) -> None:
    assert await ground.begin()
    assert (ground.moved, ground.burials.partitions(), ground.burials.trouble()) == (SPANS, frozenset(), None)


async def test_partitions_wait_until_their_letters_are_written_and_are_told_once(ground: Ground) -> None:
    ground.fails_with = LogUnavailable("away")
    assert not await ground.begin()
    assert (ground.moved, ground.burials.ended(), sorted(ground.burials.partitions())) == ([], [], [1, 2])
    assert ground.burials.trouble() == "dead letters of partitions 1, 2 are not written: away"
    assert ground.burials.for_a_person() is None
    ground.fails_with = None
    await asyncio.wait(ground.burials.under_way())
    [(burial, superseded)] = ground.burials.ended()
    assert (burial.letters, superseded, ground.moved) == (LETTERS, None, SPANS)
    assert (ground.burials.partitions(), ground.burials.ended()) == (frozenset(), [])


async def test_what_a_person_must_mend_is_not_waited_for_and_tried_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.burials.GRACE", 3600.0)
    ground.fails_with = ConfigError("no such topic")
    async with asyncio.timeout(30):
        assert not await ground.begin()
        assert str(ground.burials.for_a_person()) == "no such topic"
        for _ in range(3):
            await ground.tries.acquire()


async def test_letters_of_partitions_that_were_taken_away_are_left_to_whoever_has_them(ground: Ground) -> None:
    ground.fails_with = LogUnavailable("away")
    assert not await ground.begin()
    ground.owned = {2, 3}
    await asyncio.wait(ground.burials.under_way())
    [(_, superseded)] = ground.burials.ended()
    assert isinstance(superseded, Superseded)
    assert ground.moved == []
