"""Each page about a kind of source is an exchange, a configuration and its result, and the three fit together."""

import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import httpx
import pytest

from checkpoints import StreamId
from ingest.app import App
from ingest.cli.opened import open_source
from ingest.config.loader import parse
from ingest.redaction import Redactor
from ingest.report import Report
from ingest.sources import Page
from ingest.sources.cursor import describe
from ingest.sources.hosts import Standing

FOLDER = Path(__file__).parents[2] / "docs" / "sources"
PAGES = {path.stem: text for path in sorted(FOLDER.glob("*.md")) if "```http" in (text := path.read_text())}


class Exchange(NamedTuple):
    asked: str  # METHOD /target
    sent: object  # JSON, or None
    answer: httpx.Response


def exchanges(text: str) -> Iterator[Exchange]:
    for block in re.findall(r"```http\n(.*?)```", text, re.DOTALL):
        request, head, body = block.split("\n\n", 2)
        asked, *sent = request.split("\n", 1)
        status, *headers = head.splitlines()
        named = [(line.partition(": ")[0], line.partition(": ")[2]) for line in headers]
        yield Exchange(
            asked,
            json.loads(sent[0]) if sent else None,
            httpx.Response(int(status), headers=named, content=body.strip()),
        )


class Told(httpx.AsyncBaseTransport):
    """Answers what the page says, in its order."""

    def __init__(self, script: list[Exchange]) -> None:
        self.left = script

    def of(self, url: str, standing: Standing) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self)

    async def aclose(self) -> None:
        pass

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert self.left, f"one request more than the page tells: {request.url}"
        told = self.left.pop(0)
        assert f"{request.method} {unquote(request.url.raw_path.decode())}" == told.asked
        assert (json.loads(request.content) if request.content else None) == told.sent
        return told.answer


def result(pages: list[Page]) -> str:
    lines = [
        f"page {n}: {', '.join(record.id for record in page.records) or 'empty'}" for n, page in enumerate(pages, 1)
    ]
    return "\n".join([*lines, f"stopped because: {pages[-1].stop}", f"cursor: {describe(pages[-1].cursor)}"])


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_shows_what_comes_of_its_exchange(name: str) -> None:
    text = PAGES[name]
    [yaml] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    [shown] = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    told = Told(list(exchanges(text)))
    loaded = parse(yaml)
    [stream] = loaded.config.sources["shop"].streams
    async with App(loaded, Redactor()) as app, AsyncExitStack() as stack:
        opened = await open_source(app, "shop", stack, alone=True, clients=told)
        pages = [page async for page in opened.stream(stream).pages(None, Report(StreamId("shop", stream)))]
    assert result(pages) == shown.strip()
    assert not told.left


def test_there_are_pages() -> None:
    assert len(PAGES) >= 10
