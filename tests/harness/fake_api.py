"""An HTTP API that pages through lists of records and misbehaves on order: a raw server, so that bodies can be broken.

Every request is kept in `requests`, in order. With `log_path` every response is a line of JSON, synced to disk before
the next request of its connection is read: what was really served, for whoever checks what arrived after a crash. As a
process of its own (`spawn`, or `python -m tests.harness.fake_api`) it outlives the poller.
"""

import argparse
import asyncio
import gzip
import json
import os
import signal
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, get_args

from tests.harness.faults import Fault, by_chance, ok
from tests.harness.listings import Answer, Json, Listing, Request, Style, record
from tests.harness.processes import Child, accepts, free_ports

HEAD_LIMIT = 64 * 1024  # bytes of a request's head
START_TIMEOUT = 30.0  # seconds
CONTROL = "/_lists/"


class FakeApi:
    """`async with FakeApi() as api`. A list is at `{url}/{name}`; see tests/harness/listings.py for the styles. With
    `tls` it is https://localhost."""

    def __init__(self, *, port: int = 0, log_path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.routes: dict[str, Callable[[Request], Answer]] = {}
        """Paths that are no lists, such as one that hands out tokens; faults do not reach them."""
        self.budget: int | None = None
        """Requests after so many are refused, for clients that would go on for ever."""
        self.arrived: Callable[[Request], None] = lambda request: None
        """Is told of every request before it is answered."""
        self._listings: dict[str, Listing] = {}
        self._faults: Iterator[Fault] = iter(())
        self._port, self._tls = port, tls
        self._log = None if log_path is None else log_path.open("ab", buffering=0)
        self._connections: set[asyncio.Task[None]] = set()
        self._mistakes: list[Exception] = []  # of the test that wrote the script, or of a client that speaks no HTTP

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=HEAD_LIMIT, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        if self._log is not None:
            self._log.close()
        if self._mistakes:
            raise self._mistakes[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}" if self._tls is None else f"https://localhost:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def serve(
        self, name: str, records: Iterable[Json | bytes], *, style: Style = "next_url", page_size: int = 100
    ) -> Listing:
        """List `records` at `{url}/{name}`, from now on; the listing can be changed at any time."""
        self._listings[name] = Listing([record(one) for one in records], style, page_size)
        return self._listings[name]

    def list_as(self, name: str, listing: Listing) -> None:
        """As `serve`, of a kind of its own."""
        self._listings[name] = listing

    def misbehave(self, faults: Iterable[Fault]) -> None:
        """The next requests for lists get one fault each, in order; those after the last are answered well."""
        self._faults = iter(faults)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        reused = False
        try:
            while (request := await _read(reader)) is not None:
                answer = self._answer(replace(request, reused=reused))
                reused = True
                sent = await _send(writer, answer)
                self._write_down(answer, sent)
                if answer.cut == 0:
                    _reset(writer)
                if answer.cut < 1:
                    return
        except ConnectionError:
            pass  # the client went away, as crashing pollers do
        except Exception as exc:
            self._mistakes.append(exc)
        finally:
            self._connections.discard(connection)
            writer.close()

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith(CONTROL):
            return self._control(request)
        self.requests.append(request)
        self.arrived(request)
        if self.budget is not None and len(self.requests) > self.budget:
            return Answer(request, status=400, body=b'{"error":"enough"}')
        if (route := self.routes.get(request.path)) is not None:
            return route(request)
        name, _, token = request.path.removeprefix("/").partition("/")
        listing = self._listings.get(request.path.removeprefix("/")) or self._listings.get(token and name)
        if listing is None:
            return Answer(request, status=404, body=b'{"error":"no such list"}')
        meant = listing.answer(request)
        told = next(self._faults, ok)(meant)
        listing.remember(told, meant)
        return told

    def _control(self, request: Request) -> Answer:
        """PUT replaces the records of a list, POST adds to them: for tests that talk to another process."""
        listing = self._listings[request.path.removeprefix(CONTROL)]
        records = json.loads(request.body)
        if request.method == "PUT":
            listing.replace(records)
        else:
            listing.add(*records)
        return Answer(request, status=204, body=b"")

    def _write_down(self, answer: Answer, sent: int) -> None:
        if self._log is None or answer.request.path.startswith(CONTROL):
            return
        line = {
            "t": time.time(),
            "path": answer.request.target,
            "status": answer.status,
            "complete": answer.cut == 1,
            "ids": [(one.id, one.sha256) for one in answer.records],
            "bytes": sent,
        }
        self._log.write(json.dumps(line).encode() + b"\n")
        os.fsync(self._log.fileno())


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None when the client is done with it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> int:
    """How many bytes of the body were handed over."""
    if answer.cut == 0:
        return 0
    headers, body = answer.rendered()
    if answer.gzip:
        body, headers = gzip.compress(body, 1), (*headers, ("content-encoding", "gzip"))
    head = f"HTTP/1.1 {answer.status} Because\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    if answer.status not in (204, 304):
        head += f"content-length: {len(body)}\r\n"
    kept = body[: int(len(body) * answer.cut)]
    if answer.drip:
        writer.write(head.encode("latin-1") + b"\r\n")
        return await _drip(writer, kept, answer.drip)
    half = len(kept) // 2 if answer.pause else len(kept)
    writer.write(head.encode("latin-1") + b"\r\n" + kept[:half])
    await writer.drain()
    if answer.pause:
        await asyncio.sleep(answer.pause)
        writer.write(kept[half:])
        await writer.drain()
    return len(kept)


async def _drip(writer: asyncio.StreamWriter, body: bytes, pause: float) -> int:
    """Byte by byte, `pause` seconds apart."""
    for at in range(len(body)):
        writer.write(body[at : at + 1])
        await writer.drain()
        await asyncio.sleep(pause)
    return len(body)


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST, not FIN: a linger of zero seconds drops what is unsent."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def numbered(count: int, *, first: int = 1) -> list[Json]:
    """Records that differ in all that matters: `id`, `updated_at` (one a second, ascending) and one of 97 accounts."""
    return [
        {
            "id": f"evt_{n:07d}",
            "account": f"acct_{n % 97}",
            "updated_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + n)),
            "amount": n * 100 + 1,
        }
        for n in range(first, first + count)
    ]


@dataclass(frozen=True)
class Spawned:
    url: str
    """Of the list."""
    log: Path
    child: Child

    def close(self) -> None:
        self.child.kill()


def spawn(
    directory: Path,
    *,
    records: int = 1_000,
    style: Style = "next_url",
    page_size: int = 100,
    faults: str = "",
    seed: int = 1,
) -> Spawned:
    """A process that serves one list, `events`, of `numbered` records; `faults` as in `by_chance`."""
    [port] = free_ports(1)
    log = directory / "served.jsonl"
    options = ["--port", port, "--records", records, "--style", style, "--page-size", page_size, "--log", log]
    options += ["--faults", faults, "--seed", seed]
    command = [sys.executable, "-m", "tests.harness.fake_api", *map(str, options)]
    child = Child(command, log=directory / "fake_api.log", cwd=Path(__file__).resolve().parents[2])
    child.wait_until(lambda: accepts(port), timeout=START_TIMEOUT, name="the fake API")
    return Spawned(f"http://127.0.0.1:{port}/events", log, child)


def served(log: Path) -> dict[str, set[str]]:
    """From the lines of a log: the SHA-256 of each version of each id that went out in a whole answer."""
    versions: dict[str, set[str]] = {}
    for line in map(json.loads, log.read_text().splitlines()):
        if line["complete"]:
            for id, sha256 in line["ids"]:
                versions.setdefault(id, set()).add(sha256)
    return versions


async def _run(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with FakeApi(port=arguments.port, log_path=arguments.log) as api:
        api.serve(arguments.name, numbered(arguments.records), style=arguments.style, page_size=arguments.page_size)
        api.misbehave(by_chance(arguments.faults, arguments.seed))
        sys.stdout.write(f"{api.url}/{arguments.name}\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> None:
    """Serve one list until SIGTERM or SIGINT; its URL is printed when it answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.fake_api", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    parser.add_argument("--name", default="events")
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--style", choices=get_args(Style), default="next_url")
    parser.add_argument("--page-size", type=int, default=100)
    parser.add_argument("--log", type=Path, default=None, help="a file that gets a line for each response")
    parser.add_argument("--faults", default="", help="such as 429:0.02,reset:0.01")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
