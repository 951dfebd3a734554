"""Each page about a kind of source is exchanges, configurations and their results, and they fit together."""

import asyncio
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import httpx
import pytest

from checkpoints import StreamId
from ingest.config.loader import parse
from ingest.config.model import Source
from ingest.config.references import nowhere, resolve
from ingest.eventlog.place import located
from ingest.eventlog.sqlite import SqliteAdmin
from ingest.poller import Target
from ingest.redaction import Redactor
from ingest.report import Report
from ingest.run import Runner, Stream
from ingest.sources import Page
from ingest.sources.auth.keyring import open_keyring
from ingest.sources.cursor import describe
from ingest.sources.family import Family, Parts
from ingest.sources.gate import Gate
from ingest.sources.hosts import Standing
from ingest.sources.transport import open_transport
from tests.unit.polling import TOPIC, TTL, process
from tests.unit.sources import Timeless

FOLDER = Path(__file__).parents[2] / "docs" / "sources"
HERE = "https://api.example.com"
NOON = 1_719_835_200.0  # 2024-07-01T12:00:00Z: when the pages are read


def sections() -> Iterator[tuple[str, str]]:
    """What has an exchange of its own: pages, and parts of pages, by their headings."""
    for path in sorted(FOLDER.glob("*.md")):
        for part in re.split(r"^## ", path.read_text(), flags=re.MULTILINE):
            if "```http" in part:
                yield f"{path.stem}: {part.splitlines()[0].removeprefix('# ')}", part


SECTIONS = dict(sections())


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Exchange(NamedTuple):
    asked: str  # METHOD /target
    headers: dict[str, str]  # those that the page shows; a value that ends in … only begins so
    sent: str
    answer: httpx.Response


def exchanges(text: str) -> Iterator[Exchange]:
    for block in blocks(text, "http"):
        request, head, body = (block.strip() + "\n\n").split("\n\n", 2)
        (asked, *above), (status, *below) = request.splitlines(), head.splitlines()
        named, sent = above, ""
        if above and ": " not in above[-1].partition('"')[0]:
            *named, sent = above
        headers = fields(below)
        content = packed(body) if headers.get("Content-Type") == "application/zip" else body.strip().encode()
        yield Exchange(asked, fields(named), sent, httpx.Response(int(status), headers=headers, content=content))


def fields(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}


def packed(listing: str) -> bytes:
    """A zip of files: their names, and below each its lines, indented."""
    files = io.BytesIO()
    with zipfile.ZipFile(files, "w") as archive:
        for name, lines in re.findall(r"^(\S+)\n((?:  .*\n)+)", listing.rstrip() + "\n", re.MULTILINE):
            archive.writestr(name, re.sub(r"^  ", "", lines, flags=re.MULTILINE))
    return files.getvalue()


class Told(httpx.AsyncBaseTransport):
    """Answers what the page says; equal requests in its order."""

    def __init__(self, script: list[Exchange]) -> None:
        self.left = script

    def of(self, url: str, standing: Standing) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self)

    async def aclose(self) -> None:
        pass

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = f"{request.method} {unquote(str(request.url)).removeprefix(HERE)}"
        told = next((one for one in self.left if one.asked == asked), None)
        assert told, f"one request more than the page tells: {asked}"
        self.left.remove(told)
        for name, value in told.headers.items():
            beginning, cut, _ = value.partition("…")
            assert request.headers[name].startswith(beginning) if cut else request.headers[name] == value
        content = request.content.decode()
        assert content == told.sent or json.loads(content) == json.loads(told.sent)
        return told.answer


@asynccontextmanager
async def family(source: Source, told: Told, redactor: Redactor) -> AsyncIterator[Family]:
    clock = Timeless(NOON).clock
    gate = Gate("shop", source.limits, clock=clock)
    async with (
        open_transport(source, redactor, clock, gate=gate, clients=told) as transport,
        open_keyring("shop", source, transport, redactor) as keyring,
    ):
        yield Family(Parts(source, transport, keyring, redactor, nowhere))


async def listed(source: Source, stream: str, told: Told, redactor: Redactor, *, values: bool) -> str:
    """The pages of one listing."""
    report = Report(StreamId("shop", stream))
    async with family(source, told, redactor) as streams:
        pages = [page async for page in streams.stream(stream).pages(None, report) if not page.bare]
    lines = [f"page {n}:{shown(page, values=values)}" for n, page in enumerate(pages, 1)]
    lines += [f"waited: {report.waited:.0f} s"] if report.waited else []
    lines += [f"stopped because: {pages[-1].stop}", f"cursor: {describe(pages[-1].cursor)}"]
    return "\n".join(lines)


def shown(page: Page, *, values: bool) -> str:
    if values:
        return "".join(f"\n  {record.value.decode()}" for record in page.records)
    return " " + (", ".join(record.id for record in page.records) or "empty")


async def published(source: Source, stream: str, told: Told, redactor: Redactor, path: Path) -> str:
    """What each run publishes, until the page has told everything."""
    lines: list[str] = []
    known: set[str] = set()
    while told.left:
        async with process(path) as one, family(source, told, redactor) as streams:
            locate = partial(located, SqliteAdmin(one.database))
            runner = Runner(one.publisher, one.checkpoints, one.leases, one.holder, locate, lease_ttl=TTL)
            target = Target(StreamId("shop", stream), TOPIC, 100)
            [report] = await runner.once([Stream(target, streams.stream(stream), 1.0)], asyncio.Event())
            events = {re.sub("~[0-9a-f]{16}|(?<=#deleted@).*T.*Z", "…", event.id) for event in await one.events()}
        lines.append(f"run {len(lines) + 1} {report.outcome}: {report.reason}")
        lines[-1] += "".join(f"\n  {id}" for id in sorted(events - known))
        known |= events
    return "\n".join(lines)


@pytest.mark.parametrize("name", SECTIONS)
async def test_a_page_shows_what_comes_of_its_exchange(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, redactor = SECTIONS[name], Redactor()
    [yaml], [result] = blocks(text, "yaml"), blocks(text, "text")
    for variable, value in re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE):
        monkeypatch.setenv(variable, value)
    told = Told(list(exchanges(text)))
    source = resolve(parse(yaml).config.sources["shop"], redactor)
    *_, stream = source.streams
    if result.startswith("run 1 "):
        found = await published(source, stream, told, redactor, tmp_path / "ingest.db")
    else:
        found = await listed(source, stream, told, redactor, values="{" in result)
    assert found == result.strip()
    assert not told.left


def test_there_are_pages() -> None:
    assert len(SECTIONS) >= 20
