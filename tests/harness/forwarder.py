"""One address in front of several servers, as a service or a virtual IP is: where it leads can be changed, and the
packets of what passes can be lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 64 * 1024  # bytes


class Forwarder:
    """Made by `forwarding`. Connections are on 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.Task[None]] = set()

    def switch(self, target: int) -> None:
        """To another server; who is connected is cut off."""
        self._target = target
        self.cut()

    def cut(self) -> None:
        for connection in self._connections:
            connection.cancel()

    def silence(self) -> None:
        """Connections stay, new ones are taken, and nothing passes either way: as when packets are dropped."""
        self._passing.clear()

    def speak(self) -> None:
        self._passing.set()

    def forget(self) -> None:
        """What is connected now stays silent for ever, new connections pass: as behind a router that was replaced."""
        self._passing.clear()
        self._passing = asyncio.Event()
        self._passing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        passing = self._passing
        try:
            await passing.wait()
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, requests, passing))
                    group.create_task(self._pump(answers, writer, passing))
            finally:
                requests.transport.abort()
        except* OSError:
            pass  # one side is gone, and so is the other one's connection
        except* asyncio.CancelledError:
            pass  # cut; nobody waits for this task
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        while chunk := await reader.read(CHUNK):
            await passing.wait()
            writer.write(chunk)
            await writer.drain()
        await passing.wait()  # the end of a stream is a packet, too
        raise ConnectionResetError  # who closed one way has closed: Postgres knows no half-open connection

    async def close(self) -> None:
        tasks = [*self._connections]
        self.cut()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def forwarding(target: int) -> AsyncIterator[Forwarder]:
    """`target`: the port of the first server."""
    forwarder = Forwarder(target)
    server = await asyncio.start_server(forwarder.serve, "127.0.0.1", 0)
    forwarder.port = server.sockets[0].getsockname()[1]
    try:
        yield forwarder
    finally:
        server.close()
        await forwarder.close()
