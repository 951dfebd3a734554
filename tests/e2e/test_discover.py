"""`discover` proposes what an API's own answers show, tries it, and says what it saw."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ingest.config.loader import parse
from ingest.config.model import Source
from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.listings import Style
from tests.unit.sources import reply, say

EMBEDDED = Engine("embedded", {})


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


async def proposed(folder: Path, *arguments: str, **environment: str) -> tuple[str, Source]:
    text = (await Ingest(folder, EMBEDDED, **environment)("discover", *arguments)).out
    [source] = parse(text).config.sources.values()
    return text, source


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("link", "paginate: {type: link}"),
        ("next_url", "paginate: {type: next_url, from: $.next}"),
        ("cursor", "paginate: {type: cursor, from: $.next_cursor, param: cursor, more: $.has_more}"),
        ("page", "paginate: {type: page, total_pages: $.total_pages}"),
        ("offset", "paginate: {type: offset, param: offset, total: $.total}"),
    ],
)
async def test_the_way_to_page_is_found_and_tried(api: FakeApi, tmp_path: Path, style: Style, expected: str) -> None:
    api.serve("orders", numbered(30), style=style, page_size=10)
    text, source = await proposed(tmp_path, f"{api.url}/orders")
    stream = source.streams["orders"]
    assert expected in text
    assert "2 pages of it have 20 other records" in text
    assert str(stream.records.path) == ("$" if style == "link" else "$.data")
    assert [str(path) for path in stream.id] == ["id"]
    assert "incremental: `updated_at` is a time in every record, oldest first" in text


async def test_what_is_proposed_runs(api: FakeApi, tmp_path: Path) -> None:
    api.serve("orders", numbered(25), style="cursor", page_size=10)
    ingest = Ingest(tmp_path, EMBEDDED)
    done = await ingest("discover", f"{api.url}/orders", "--name", "shop", "--out", "ingest.yaml")
    assert done.out == "wrote ingest.yaml; try it: ingest preview -s shop -t orders\n"
    assert "the store is empty" in (await ingest("events")).err
    [report] = (await ingest("run", "--once", "--json")).json
    assert (report["source"], report["events"], report["outcome"]) == ("shop", 25, "complete")
    await ingest("consume", "--once")
    assert "5 of 25 events" in (await ingest("events", "--limit", "5")).out


async def test_a_token_without_a_name_for_its_parameter_is_tried_until_one_leads_on(
    api: FakeApi, tmp_path: Path
) -> None:
    def answer(request: Any) -> Any:
        at = 2 if "last_id=2" in request.target else 0
        body = {"items": [{"id": at + 1}, {"id": at + 2}], "has_more": at == 0}
        return reply(json.dumps(body))(request)

    api.routes["/things"] = answer
    text, _ = await proposed(tmp_path, f"{api.url}/things")
    assert "paginate: {type: cursor, from: last.id, param: last_id, more: $.has_more}" in text


async def test_a_whole_list_and_one_without_an_id_are_said(api: FakeApi, tmp_path: Path) -> None:
    say(api, [reply('[{"a":1},{"a":1}]')], "/events")
    text, source = await proposed(tmp_path, f"{api.url}/events?kind=x")
    assert "nothing in the answer leads to another page" in text
    assert "no field is unique in every record" in text
    assert source.streams["events"].params == {"kind": "x"}


async def test_credentials_go_by_reference(api: FakeApi, tmp_path: Path) -> None:
    api.serve("orders", numbered(5), page_size=10)
    text, _ = await proposed(
        tmp_path, f"{api.url}/orders", "--bearer", "${env:CANARY}", "-H", "X-Team: a", CANARY="s3cret-canary"
    )
    assert 'auth: {bearer: "${env:CANARY}"}' in text
    assert "s3cret-canary" not in text
    assert api.requests[0].headers["authorization"] == "Bearer s3cret-canary"
    assert api.requests[0].headers["x-team"] == "a"


@pytest.mark.parametrize("body", ['{"error":"no"}', "<html>", '{"a":[1,2]}'])
async def test_an_answer_without_a_list_is_an_error_that_shows_it(api: FakeApi, tmp_path: Path, body: str) -> None:
    say(api, [reply(body)], "/orders")
    done = await Ingest(tmp_path, EMBEDDED)("discover", f"{api.url}/orders", code=None)
    assert done.code in (1, 3)
    assert body[:6] in done.err


@pytest.mark.parametrize(
    ("body", "form"),
    [("id;total\n1;2\n2;3\n", "csv"), ('{"id": 1, "total": 2}\n{"id": 2, "total": 3}\n', "jsonl")],
)
async def test_rows_that_are_no_json_as_a_whole_are_proposed_with_their_format(
    api: FakeApi, tmp_path: Path, body: str, form: str
) -> None:
    say(api, [reply(body, content_type="text/plain")], "/orders")
    text, source = await proposed(tmp_path, f"{api.url}/orders")
    assert f"format: {form}  # the answer is" in text
    assert [str(path) for path in source.streams["orders"].id] == ["id"]


async def test_a_refusal_stands_in_no_file(api: FakeApi, tmp_path: Path) -> None:
    done = await Ingest(tmp_path, EMBEDDED)("discover", f"{api.url}/nothing", code=1)
    assert done.err.startswith(f"GET {api.url}/nothing: 404")


async def test_what_is_no_url_and_no_file_is_said(tmp_path: Path) -> None:
    assert "is no file and no URL" in (await Ingest(tmp_path, EMBEDDED)("discover", "nothing.yaml", code=2)).err


OPENAPI = """
openapi: 3.1.0
servers: [{url: https://api.example.com/v2}]
components:
  securitySchemes: {token: {type: http, scheme: bearer}}
  parameters: {limit: {name: limit, in: query, schema: {type: integer, maximum: 200}}}
  schemas:
    Invoice: {type: object, properties: {id: {type: string}, updated_at: {type: string}}}
    Page:
      allOf:
        - {type: object, properties: {next_cursor: {type: string}}}
        - {type: object, properties: {data: {type: array, items: {$ref: "#/components/schemas/Invoice"}}}}
paths:
  /invoices:
    parameters: [{$ref: "#/components/parameters/limit"}]
    get:
      parameters: [{name: cursor, in: query}, {name: updated_since, in: query}]
      responses: {"200": {content: {application/json: {schema: {$ref: "#/components/schemas/Page"}}}}}
  /invoices/{invoice_id}/lines:
    get:
      responses:
        "200": {content: {application/json: {schema: {type: array, items: {type: object}}}}}
  /invoices/{invoice_id}:
    get:
      responses:
        "200": {content: {application/json: {schema: {$ref: "#/components/schemas/Invoice"}}}}
"""


@pytest.mark.parametrize("served", [False, True])
async def test_an_openapi_description_becomes_a_stream_for_each_list(
    api: FakeApi, tmp_path: Path, served: bool
) -> None:
    (tmp_path / "openapi.yaml").write_text(OPENAPI)
    say(api, [reply(OPENAPI)], "/openapi.yaml")
    done = await Ingest(tmp_path, EMBEDDED)(
        "discover", f"{api.url}/openapi.yaml" if served else "openapi.yaml", "--name", "billing", code=None
    )
    lines = done.out.splitlines()
    assert "    base_url: https://api.example.com/v2  # the first of `servers`" in lines, done.err
    assert '    auth: {bearer: "${env:API_TOKEN}"}  # the scheme `token`' in lines
    assert "        records: $.data  # where its answer has a list of objects" in lines
    assert any(
        line.startswith("        paginate: {type: cursor, from: $.next_cursor, param: cursor}") for line in lines
    )
    assert any("incremental: {type: timestamp, field: updated_at, since: {param: updated_since}}" in x for x in lines)
    assert any(line.startswith("        params: {limit: 200}") for line in lines)
    assert any("`invoice_id` comes from a parent stream" in line for line in lines)
    assert done.out.count("path:") == 2
