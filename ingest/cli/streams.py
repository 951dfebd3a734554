"""The streams of the configuration, ready to run: each is opened when it is first asked for."""

import asyncio
from contextlib import AsyncExitStack

from checkpoints import StreamId
from ingest.app import App
from ingest.backfill import Slice
from ingest.cli.opened import Opened, open_source
from ingest.config.schedule import DEFAULT_EVERY
from ingest.errors import ConfigError
from ingest.poller import Target
from ingest.run import Stream
from ingest.topics import Prepare


class Streams:
    """`prepare` makes the topics of a stream that are missing."""

    def __init__(self, app: App, stack: AsyncExitStack, prepare: Prepare | None = None) -> None:
        self._app, self._stack, self._prepare = app, stack, prepare
        self._opened: dict[str, Opened] = {}
        self._streams: dict[StreamId, Stream] = {}
        self._opening = asyncio.Lock()

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
