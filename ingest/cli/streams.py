"""The streams of the configuration, ready to run: each is opened when it is first asked for. And what runs them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

from checkpoints import StreamId
from ingest import topics
from ingest.app import App
from ingest.backfill import Slice
from ingest.cli.opened import Opened, open_source
from ingest.config.schedule import DEFAULT_EVERY
from ingest.errors import ConfigError
from ingest.eventlog.place import located
from ingest.poller import Target
from ingest.report import Report
from ingest.run import Runner, Stream


class Streams:
    def __init__(self, app: App, stack: AsyncExitStack) -> None:
        self._app, self._stack = app, stack
        self._prepare: topics.Prepare | None = None
        self._opened: dict[str, Opened] = {}
        self._streams: dict[StreamId, Stream] = {}
        self._opening = asyncio.Lock()

    async def prepare_by(self, prepare: topics.Prepare) -> None:
        """Make the topics of all that is open, and from here on of what is opened."""
        self._prepare = prepare
        if self._streams:
            await prepare([topic for stream in self._streams.values() for topic in stream.topics])

    async def open(self, name: StreamId) -> Stream:
        """References of its source are resolved here, and nowhere before. Raises ConfigError."""
        async with self._opening:
            if name not in self._streams:
                stream = await self._open(name)
                if self._prepare is not None:
                    await self._prepare(stream.topics)
                self._streams[name] = stream
            return self._streams[name]

    async def open_slice(self, name: StreamId, slice: Slice, note: str) -> Stream:
        """A part of the stream, with a cursor of its own; `note`: with which that goes to the history. Its events have
        the fence of whoever polls the stream, so that the later of two is the newer one."""
        whole = await self.open(name)
        checkpoints, _ = await self._app.state()
        fence = next((one.fence for one in await checkpoints.list() if one.stream == name), 0)
        target = whole.target._replace(part=slice.name, fence=fence)
        return Stream(target, self._opened[name.source].family.part(name.stream, slice.stretch), whole.every, once=note)

    async def _open(self, name: StreamId) -> Stream:
        source = self._app.config.sources.get(name.source)
        if source is None or name.stream not in source.streams:
            raise ConfigError(f"no stream {name} in {self._app.loaded.file}: it is not configured here any more")
        if name.source not in self._opened:
            self._opened[name.source] = await open_source(self._app, name.source, self._stack)
        opened = self._opened[name.source]
        stream = opened.source.streams[name.stream]
        target = Target(name, stream.topic.format(source=name.source, stream=name.stream), stream.seen_limit)
        return Stream(target, opened.stream(name.stream), stream.interval or DEFAULT_EVERY)


class Polling(NamedTuple):
    """What streams are run by."""

    runner: Runner
    streams: Streams


async def open_polling(app: App, streams: Streams, changed: Callable[[Report], None]) -> Polling:
    """The topics of what is open are made."""
    admin = await app.admin()

    async def prepare(names: Sequence[str]) -> None:
        await topics.ensure(admin, names, app.config.topics, replicated=app.replicated)

    await streams.prepare_by(prepare)
    checkpoints, leases = await app.state()
    publisher = topics.Restoring(await app.publisher(), prepare)
    return Polling(Runner(publisher, checkpoints, leases, app.holder, partial(located, admin), changed), streams)
