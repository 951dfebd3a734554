"""TCP proxies that cut, slow or silence a connection on order, and the thread that they run on.

What runs on a `Beside` goes on while the tests' own loop is held up by a server that starts or stops.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Literal, Self, TypeVar

from tests.harness.processes import free_ports

T = TypeVar("T")

CHUNK = 64 * 1024  # bytes
CALL = 30.0  # seconds that a call from another thread may take

Mode = Literal["open", "cut", "silent", "deaf"]


class Beside:
    """An event loop on a thread of its own. `with Beside() as beside`."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="beside", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.call(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it over there, and wait for what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """One door to a server on this machine. Its methods may be called from any thread.

    | mode | |
    | --- | --- |
    | `open` | bytes pass, after `delay` seconds each time |
    | `cut` | every connection is reset, new ones too |
    | `silent` | connections stay open, nothing passes either way until they are healed: as when packets are dropped |
    | `deaf` | requests arrive, their answers do not |
    """

    def __init__(self, beside: Beside, target: int, *, port: int | None = None) -> None:
        self.port = port or free_ports(1)[0]
        self._target = target
        self._beside = beside
        self._mode: Mode = "open"
        self._delay = 0.0
        self._connections: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._beside.call(self._open())

    def set(self, mode: Mode, *, delay: float = 0.0) -> None:
        self._beside.call(self._set(mode, delay))

    def heal(self) -> None:
        self.set("open")

    def close(self) -> None:
        self._beside.call(self._close())

    async def _close(self) -> None:
        self._server.close()
        connections = [*self._connections]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _open(self) -> None:
        self._changed = asyncio.Condition()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _set(self, mode: Mode, delay: float) -> None:
        async with self._changed:
            self._mode, self._delay = mode, delay
            self._changed.notify_all()
        if mode == "cut":
            for connection in self._connections:
                connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            if self._mode == "cut":
                return
            await self._passable(answer=False)
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, requests, answer=False))
                    group.create_task(self._pump(answers, writer, answer=True))
            finally:
                requests.transport.abort()
        except* OSError:
            pass  # one of the two is gone, and so is the other one's connection
        except* asyncio.CancelledError:
            pass  # cut; nobody waits for this task
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer: bool) -> None:
        while chunk := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._passable(answer=answer)
            writer.write(chunk)
            await writer.drain()
        await self._passable(answer=answer)  # the end of a stream is a packet, too
        writer.write_eof()

    async def _passable(self, *, answer: bool) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._mode in ("open", "cut") or (self._mode == "deaf" and not answer))
