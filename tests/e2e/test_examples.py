"""Each example of a source reads an exchange of its API's documented shape to its end."""

import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from checkpoints import StreamId
from ingest.app import App
from ingest.cli.opened import open_source
from ingest.config.loader import load
from ingest.redaction import Redactor
from ingest.report import Report
from ingest.sources.cursor import describe
from ingest.sources.recording import Recording

EXAMPLES = Path(__file__).parents[2] / "examples" / "sources"


class Read(NamedTuple):
    stream: str
    ids: list[str]
    version: str  # of the last record; "~": a hash
    key: str  # of the first
    mark: str | None  # where the cursor stands
    stop: str


EXPECTED = {
    "stripe": Read("charges", ["ch_3", "ch_2", "ch_1"], "~", "cus_9", "2024-07-01T13:23:00Z", "$.has_more is false"),
    "github": Read(
        "issues", ["7|901", "7|902", "7|903"], "2024-06-03T08:00:00Z", "7|901", "end of the listing",
        "every parent was listed: 2, 1 of them skipped",
    ),
    "gitlab": Read(
        "issues", ["501", "502", "503"], "2024-06-03T08:00:00.789Z", "501", "2024-06-03T08:00:00.789000Z",
        'no Link with rel="next"',
    ),
    "hubspot": Read(
        "contacts", ["101", "102", "103"], "2024-06-03T08:00:00.000Z", "101", "2024-06-03T08:00:00Z",
        "no token at $.paging.next.after",
    ),
    "shopify": Read(
        "orders", ["450789469", "450789470", "450789471"], "2024-06-03T10:05:00+02:00", "207119551",
        "2024-06-03T08:05:00Z", 'no Link with rel="next"',
    ),
    "slack": Read(
        "users", ["U01", "U02", "U03"], "1717401600", "U01", "end of the listing",
        "no token at $.response_metadata.next_cursor",
    ),
    "jira": Read(
        "issues", ["10001", "10002", "10003"], "2024-06-03T10:00:00.789+0200", "ROCK-1", "2024-06-03T08:00:00.789000Z",
        "no token at $.nextPageToken",
    ),
    "zendesk": Read(
        "tickets", ["33", "32", "31"], "2024-06-01T08:00:00Z", "7", "2024-06-03T08:00:00Z", "$.meta.has_more is false"
    ),
    "salesforce": Read(
        "accounts", ["001A", "001B", "001C"], "2024-06-03T08:00:00.000+0000", "001A", "2024-06-03T08:00:00Z",
        "no URL at $.nextRecordsUrl",
    ),
    "notion": Read(
        "tasks",
        [
            "59833787-2cf9-4fdf-8782-e53db20768a5",
            "7a7a7a7a-2cf9-4fdf-8782-e53db20768a6",
            "8b8b8b8b-2cf9-4fdf-8782-e53db20768a7",
        ],
        "2024-06-03T08:00:00.000Z", "59833787-2cf9-4fdf-8782-e53db20768a5", "2024-06-03T08:00:00Z",
        "$.has_more is false",
    ),
}  # fmt: skip


def test_every_example_of_a_source_has_an_exchange_and_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(EXPECTED)
    assert {path.name for path in (EXAMPLES / "exchanges").iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_reads_its_exchange_to_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, expected, redactor = EXAMPLES / f"{name}.yaml", EXPECTED[name], Redactor()
    for variable in re.findall(r"\$\{env:(\w+)\}", file.read_text()):
        monkeypatch.setenv(variable, f"invented-{variable.lower()}")
    async with App(load(file), redactor) as app, AsyncExitStack() as stack:
        recording = Recording(EXAMPLES / "exchanges" / name, redactor)
        opened = await open_source(app, name, stack, alone=True, clients=recording)
        report = Report(StreamId(name, expected.stream))
        pages = [page async for page in opened.stream(expected.stream).pages(None, report)]
    records = [record for page in pages for record in page.records]
    assert len([page for page in pages if page.records]) >= 2
    assert not [refused for page in pages for refused in page.refused]
    assert set(report.notices) <= {"slipping", "parent_skipped"}  # tokens that count rows or pages; a 410
    assert list(dict.fromkeys(record.id for record in records)) == expected.ids
    assert (records[-1].version or "").startswith(expected.version)
    assert records[0].key == expected.key
    assert (describe(pages[-1].cursor), pages[-1].stop) == (expected.mark, expected.stop)
