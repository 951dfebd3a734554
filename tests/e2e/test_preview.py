"""`preview` and `explain`: what a configuration means, shown before anything is published or saved."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi, numbered
from tests.unit.sources import reply, say

EMBEDDED = Engine("embedded", {})
TOKEN = "s3cret-canary-token"


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        server.serve("orders", numbered(25), page_size=10)
        yield server


def configured(folder: Path, api: FakeApi, engine: Engine = EMBEDDED) -> Ingest:
    (folder / "ingest.yaml").write_text(f"""
version: 1
sources:
  shop:
    base_url: {api.url}
    auth: {{bearer: "${{env:TOKEN}}"}}
    streams:
      orders:
        path: /orders
        records: $.data
        id: id
        key: account
        paginate: {{type: next_url, from: $.next}}
        incremental: {{type: timestamp, field: updated_at, lag: 1m}}
topics:
  partitions: 5
""")
    return Ingest(folder, engine, TOKEN=TOKEN)


async def test_a_preview_shows_what_would_be_published_and_touches_no_state(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api)
    first, second, last = (
        json.loads(line)
        for line in (await ingest("preview", "-s", "shop", "-t", "orders", "-p", "2", "--json")).out.splitlines()
    )
    shown = first["shown"][0]
    assert shown["event_id"].startswith("shop:orders:evt_0000001@~")
    assert (shown["key"], shown["payload"]["id"]) == ("acct_1", "evt_0000001")
    assert 0 <= shown["partition"] < 5
    assert (first["records"], second["records"], second["cursor"]["listing"]["n"]) == (10, 10, 2)
    assert "there is more" in last["stopped"]
    assert not (tmp_path / ".ingest").exists()


async def test_it_says_why_the_listing_stopped_and_what_becomes_a_dead_letter(api: FakeApi, tmp_path: Path) -> None:
    say(api, [reply('{"data":[{"id":1,"account":"a"},{"id":null}]}')], "/orders")
    done = await configured(tmp_path, api)("preview", "-s", "shop", "-t", "orders")
    assert "stopped because: no URL at $.next (1 requests, 0 retries)" in done.out
    assert "1 records, 1 dead letters, 0 left out" in done.out
    assert 'dead letter: `id` (id) is null or missing: {"id":null}' in done.out


async def test_a_record_with_brackets_is_shown_as_it_is(api: FakeApi, tmp_path: Path) -> None:
    record = {"id": "[red]1[/red]", "text": "[/none] [link"}
    api.serve("orders", [record])
    ingest = configured(tmp_path, api)
    previewed = (await ingest("preview")).out
    file = tmp_path / "ingest.yaml"
    file.write_text(f'{file.read_text()}consumers: {{rows: {{kind: store, topics: ["shop.*"]}}}}\n')
    await ingest("run", "--once")
    await ingest("consume", "--once")
    stored = (await ingest("events")).out
    assert all(text in previewed and text in stored for text in record.values())


async def test_exchanges_are_shown_and_kept_without_secrets_and_answer_without_the_api(
    api: FakeApi, tmp_path: Path
) -> None:
    ingest, asked = configured(tmp_path, api), ("preview", "-s", "shop", "-t", "orders", "-p", "9", "--json")
    live = await ingest(*asked, "--http", "--save", "kept")
    kept = sorted((tmp_path / "kept").iterdir())
    assert [file.name for file in kept] == ["001.json", "002.json", "003.json"]
    assert "> authorization: Bearer ***" in live.err
    assert TOKEN not in live.out + live.err + "".join(file.read_text() for file in kept)
    requests = len(api.requests)
    again = await ingest(*asked, "--replay", "kept")
    assert len(api.requests) == requests

    def without_times(text: str) -> list[object]:
        lines = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in line.items() if k != "cursor"} for line in lines]

    assert without_times(again.out) == without_times(live.out)


async def test_credentials_that_an_api_hands_out_are_neither_shown_nor_kept_and_its_pages_are_found_again(
    api: FakeApi, tmp_path: Path
) -> None:
    new = "n3w-cr3dential"
    link = f"/orders?access_token={new}&token=t2"
    rows = [{"data": [{"id": 1}], "next": link, "id_token": new}, {"data": [{"id": 2}]}]
    say(api, [reply(json.dumps(row), set_cookie=f"sid={new}", x_auth_token=new) for row in rows], "/orders")
    ingest, asked = configured(tmp_path, api), ("preview", "-s", "shop", "-t", "orders", "--json")
    live = await ingest(*asked, "--http", "--save", "kept")
    assert api.requests[1].target == link
    assert new not in live.out + live.err + "".join(file.read_text() for file in (tmp_path / "kept").iterdir())
    again = await ingest(*asked, "--replay", "kept")
    assert ['"id": 1' in again.out, '"id": 2' in again.out, len(api.requests)] == [True, True, 2]


WITHOUT_RECORDS = """version: 1
sources:
  shop:
    base_url: {url}
    defaults: {{id: id}}
    streams:
      orders: {{path: /orders}}
      other: {{path: /other}}
"""


async def test_a_stream_without_records_is_shown_with_the_lists_that_were_found_and_is_not_run(
    api: FakeApi, tmp_path: Path
) -> None:
    body = {"included": [{"id": "x"}], "page": {"items": [{"id": 1}, {"id": 2}], "tags": ["a"]}, "errors": []}
    say(api, [reply(json.dumps(body))], "/orders")
    (tmp_path / "ingest.yaml").write_text(WITHOUT_RECORDS.format(url=api.url))
    ingest, asked = Ingest(tmp_path, EMBEDDED), ("preview", "-s", "shop", "-t", "orders")
    done = await ingest(*asked, "--save", "kept")
    assert (
        "ingest.yaml:7:15: no `records` yet; lists in the first answer: $.page.items (2), $.included (1); shown as"
        " if it said `records: $.page.items`"
    ) in done.out
    assert "page 1: 2 records" in done.out
    asked_for = len(api.requests)
    first, second, _ = (
        json.loads(line) for line in (await ingest(*asked, "--json", "--replay", "kept")).out.splitlines()
    )
    assert first["records"] == {"$.page.items": 2, "$.included": 1}
    assert [one["payload"]["id"] for one in second["shown"]] == [1, 2]
    assert len(api.requests) == asked_for
    refused = await ingest("run", "--once", code=2)
    assert "ingest.yaml:7:15: `records` is missing" in refused.err
    assert len(api.requests) == asked_for


@pytest.mark.parametrize("body", ['{"data":[]}', "<a><b>1</b></a>", '{"data":[1,2]}'])
async def test_an_answer_without_a_list_of_records_proposes_none(api: FakeApi, tmp_path: Path, body: str) -> None:
    say(api, [reply(body)], "/orders")
    (tmp_path / "ingest.yaml").write_text(WITHOUT_RECORDS.format(url=api.url))
    done = await Ingest(tmp_path, EMBEDDED)("preview", "-s", "shop", "-t", "orders", code=1)
    assert "ingest.yaml:7:15: no `records` yet, and the first answer is no JSON with a list of objects" in done.err


async def test_other_mistakes_of_a_stream_without_records_are_all_said(api: FakeApi, tmp_path: Path) -> None:
    text = WITHOUT_RECORDS.format(url=api.url).replace("{path: /other}", "{path: /other, every: 5}")
    (tmp_path / "ingest.yaml").write_text(text)
    done = await Ingest(tmp_path, EMBEDDED)("preview", "-s", "shop", "-t", "orders", code=2)
    for mistake in ("7:15: `records` is missing", "8:14: `records` is missing", "8:36: `5` is no duration"):
        assert mistake in done.err


async def test_an_exchange_that_was_not_kept_is_an_error_that_names_it(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api)
    await ingest("preview", "-s", "shop", "-t", "orders", "-p", "1", "--save", "kept")
    (tmp_path / "kept" / "002.json").unlink(missing_ok=True)
    done = await ingest("preview", "-s", "shop", "-t", "orders", "--replay", "kept", code=2)
    assert f"kept holds no answer to GET {api.url}/orders?token=t10" in done.err


async def test_the_only_stream_needs_no_name_and_a_wrong_one_is_told_the_others(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api)
    assert "topic shop.orders; from the beginning" in (await ingest("preview", "-p", "1")).out
    missing = (await ingest("preview", "-s", "shop", "-t", "order", code=2)).err
    assert missing == "no stream shop/order; configured: shop/orders\n"
    file = tmp_path / "ingest.yaml"
    file.write_text(file.read_text().replace("topics:", "      users: {path: /users, records: $}\ntopics:"))
    several = (await ingest("preview", "-s", "shop", code=2)).err
    assert several == "which stream? choose with --source and --stream: shop/orders, shop/users\n"


async def test_explain_shows_every_value_and_where_it_stands(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api)
    found = {one["key"]: one for one in (await ingest("explain", "--json")).json}
    assert found["sources.shop.streams.orders.key"] == {
        "key": "sources.shop.streams.orders.key", "value": "account", "from": "ingest.yaml:12:14"
    }  # fmt: skip
    assert found["sources.shop.retry.attempts"]["from"] == "default"
    assert found["sources.shop.auth.bearer"]["value"] == "${env:TOKEN}"
    plain = (await ingest("explain", "-s", "shop", "-t", "orders")).out
    assert "sources.shop.streams.orders.incremental.lag: 1m" in plain
    assert "topics." not in plain


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("postgresql://u:p@ssw0rd@db.example.com/x", "postgresql://u:***@db.example.com/x"),
        (
            "postgresql://db.example.com/x?user=u&password=s3cr3t&a=1",
            "postgresql://db.example.com/x?user=u&password=***&a=1",
        ),
        ("postgresql://u:${env:PW}@db.example.com/x", "postgresql://u:${env:PW}@db.example.com/x"),
    ],
)
async def test_explain_shows_no_password_that_stands_in_a_url(
    api: FakeApi, tmp_path: Path, written: str, shown: str
) -> None:
    ingest = configured(tmp_path, api)
    with (tmp_path / "ingest.yaml").open("a") as file:
        file.write(f'\nstore: "{written}"\n')
    found = {one["key"]: one["value"] for one in (await ingest("explain", "--json")).json}
    assert found["store"] == shown


# ---- check --connect


async def test_check_connect_asks_everything_and_publishes_nothing(
    api: FakeApi, engine: Engine, tmp_path: Path
) -> None:
    ingest = configured(tmp_path, api, engine)
    report = "path: /made, records: $.data, job: {create: {id: a}, poll: {path: '/{job.id}'}, download: {path: /b}}"
    written = (tmp_path / "ingest.yaml").read_text().replace("topics:", f"      made: {{{report}}}\ntopics:")
    (tmp_path / "ingest.yaml").write_text(written + "  replication: 1\n  min_insync: 1\n  durability: relaxed\n")
    done = await ingest("check", "--connect")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "stream shop/orders yes 10 records on the first page; and there is more" in lines
    assert any(line.startswith("stream shop/made yes not asked") for line in lines)
    assert any(line.startswith("log yes 0 of 2 topics exist") for line in lines)
    assert any(line.startswith("store yes") for line in lines)
    assert any(line.startswith("state yes") and line.endswith(": 0 saved cursors") for line in lines)
    assert len(api.requests) == 1


async def test_check_connect_says_what_does_not_answer_and_goes_on(api: FakeApi, tmp_path: Path) -> None:
    ingest = configured(tmp_path, api, EMBEDDED)
    say(api, [reply('{"error":"no"}', status=403)], "/orders")
    done = await ingest("check", "--connect", code=1)
    assert "stream shop/orders" in done.out
    assert "403" in done.out
    assert "check `auth` and what it may read" in " ".join(done.out.split())
    assert "store" in done.out
    assert TOKEN not in done.out + done.err
