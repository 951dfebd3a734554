"""Partitions that wait until their dead letters are written, while the others are read on.

A batch waits a short while for the dead letters of its bad records. Where they cannot be written, only the partitions
that these came from wait on: nothing is skipped until its dead letter is acknowledged. They are tried again until they
are written, or the partitions are someone else's. What is kept for it is at most a batch for each partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from consumers.deadletter import Bad
from ingest.errors import ConfigError, IngestError, LogUnavailable, StoreUnavailable, Superseded
from ingest.eventlog import Span
from ingest.retry import backoff

log = structlog.get_logger()

GRACE = 5.0  # seconds that a whole batch waits for its dead letters
RETRY_BASE, RETRY_CAP = 0.2, 30.0  # seconds


class Burial:
    """The dead letters of one batch, and the spans that move when they are written."""

    def __init__(self, letters: Sequence[Bad], spans: Sequence[Span]) -> None:
        self.letters, self.spans = letters, spans
        self.failure: IngestError | None = None  # of the last try
        self.written = False  # every letter is acknowledged
        self.for_a_person = asyncio.Event()

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(span.partition for span in self.spans)


class Burials:
    """Those of one membership. `bury` returns when every letter is acknowledged, `move` when the store has the spans;
    `owned`: the partitions that are ours now."""

    def __init__(
        self,
        group: str,
        bury: Callable[[Sequence[Bad]], Awaitable[None]],
        move: Callable[[Sequence[Span]], Awaitable[None]],
        owned: Callable[[], Collection[int]],
    ) -> None:
        self._group, self._bury, self._move, self._owned = group, bury, move, owned
        self._open: dict[asyncio.Task[None], Burial] = {}

    async def begin(self, letters: Sequence[Bad], spans: Sequence[Span], stopping: "asyncio.Task[bool]") -> bool:
        """Whether it came to its end in time. Else it goes on, also when `stopping` is done. Raises Superseded."""
        burial = Burial(letters, spans)
        task = asyncio.create_task(self._try(burial))
        self._open[task] = burial
        stuck = asyncio.create_task(burial.for_a_person.wait())
        try:
            await asyncio.wait([task, stopping, stuck], timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stuck.cancel()
        if task.done():
            del self._open[task]
            task.result()
        elif not stopping.done():
            held = sorted(burial.partitions)
            log.warning("partitions wait until their dead letters are written", group=self._group, partitions=held)
        return task.done()

    def partitions(self) -> frozenset[int]:
        """Those that wait."""
        return frozenset().union(*(burial.partitions for burial in self._open.values()))

    def under_way(self) -> Collection["asyncio.Task[None]"]:
        return self._open.keys()

    def ended(self) -> Sequence[tuple[Burial, Superseded | None]]:
        """And the reason, where the partitions are someone else's. Each is told once."""
        found: list[tuple[Burial, Superseded | None]] = []
        for task in [task for task in self._open if task.done()]:
            burial = self._open.pop(task)
            try:
                task.result()
            except Superseded as exc:
                found.append((burial, exc))
            else:
                found.append((burial, None))
        return found

    def trouble(self) -> str | None:
        """Why some partitions wait, in words."""
        if not self._open:
            return None
        why = next((str(burial.failure) for burial in self._open.values() if burial.failure), "they are on their way")
        waiting = sorted(self.partitions())
        named = f"partition{'s' if len(waiting) > 1 else ''} {', '.join(map(str, waiting))}"
        return f"dead letters of {named} are not written: {why}"

    def for_a_person(self) -> ConfigError | None:
        """What a person must mend before they can be written."""
        failures = (burial.failure for burial in self._open.values())
        return next((failure for failure in failures if isinstance(failure, ConfigError)), None)

    async def close(self) -> None:
        """What is not written is read again, by whoever has the partitions next."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _try(self, burial: Burial) -> None:
        attempt = 0
        while True:
            attempt += 1
            if not burial.partitions <= frozenset(self._owned()):
                raise Superseded("the partitions were taken away")
            try:
                if not burial.written:
                    await self._bury(burial.letters)
                    burial.written = True
                await self._move(burial.spans)
                burial.failure = None
                return
            except (LogUnavailable, StoreUnavailable) as exc:
                burial.failure = exc
                log.warning("cannot write dead letters yet", group=self._group, attempt=attempt, error=str(exc))
            except ConfigError as exc:
                burial.failure = exc
                burial.for_a_person.set()
                log.error("cannot write dead letters: a person must act", group=self._group, error=str(exc))
            await asyncio.sleep(backoff(attempt, RETRY_BASE, RETRY_CAP))
