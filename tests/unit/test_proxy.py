"""The proxy that stands between processes and servers in a chaos run does to a connection what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.harness.proxy import Beside, Proxy

DEADLINE = 20.0  # seconds
QUIET = 0.3  # seconds in which nothing comes where nothing may


@pytest.fixture
def beside() -> Iterator[Beside]:
    with Beside() as beside:
        yield beside


@pytest_asyncio.fixture
async def heard() -> AsyncIterator[tuple[int, asyncio.Queue[bytes]]]:
    """A server that answers every line with the same line; its port, and what it was told."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                lines.put_nowait(line)
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], lines
    server.close()
    await server.wait_closed()


@pytest.fixture
def proxy(beside: Beside, heard: tuple[int, asyncio.Queue[bytes]]) -> Iterator[Proxy]:
    proxy = Proxy(beside, heard[0])
    proxy.open()
    yield proxy
    proxy.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def says(self, line: bytes) -> bytes:
        self.writer.write(line)
        return await self.hears()

    async def hears(self) -> bytes:
        async with asyncio.timeout(DEADLINE):
            return await self.reader.readline()

    async def is_cut_off(self) -> bool:
        """By a reset, or by the end of the stream."""
        try:
            return await self.says(b"still there?\n") == b""
        except ConnectionError:
            return True

    async def hears_nothing(self) -> bool:
        try:
            async with asyncio.timeout(QUIET):
                await self.reader.readline()
        except TimeoutError:
            return True
        return False


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield Client(reader, writer)
    writer.transport.abort()


async def test_bytes_pass_late_where_they_are_delayed(proxy: Proxy, client: Client) -> None:
    assert await client.says(b"one\n") == b"one\n"
    proxy.set("open", delay=0.2)
    began = asyncio.get_running_loop().time()
    assert await client.says(b"two\n") == b"two\n"
    assert asyncio.get_running_loop().time() - began >= 0.39, "there and back"


async def test_a_connection_that_is_cut_is_reset_and_so_is_a_new_one(proxy: Proxy, client: Client) -> None:
    assert await client.says(b"one\n") == b"one\n"
    proxy.set("cut")
    assert await client.is_cut_off()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await Client(reader, writer).is_cut_off()
    writer.transport.abort()


async def test_a_silent_connection_passes_nothing_until_it_is_healed(
    proxy: Proxy, client: Client, heard: tuple[int, asyncio.Queue[bytes]]
) -> None:
    proxy.set("silent")
    client.writer.write(b"one\n")
    assert await client.hears_nothing()
    assert heard[1].empty()
    proxy.heal()
    assert await client.hears() == b"one\n"


async def test_a_deaf_connection_passes_requests_and_keeps_the_answers_back(
    proxy: Proxy, client: Client, heard: tuple[int, asyncio.Queue[bytes]]
) -> None:
    proxy.set("deaf")
    client.writer.write(b"one\n")
    async with asyncio.timeout(DEADLINE):
        assert await heard[1].get() == b"one\n"
    assert await client.hears_nothing()
    proxy.heal()
    assert await client.hears() == b"one\n"
