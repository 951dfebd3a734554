"""poll → publish → save cursor: whatever happens in between, nothing is lost, and nothing is told that is not so."""

import asyncio
import itertools
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from checkpoints import StreamId
from ingest.errors import LogUnavailable, StoreUnavailable
from ingest.event import Message
from ingest.eventlog import Published, Publisher, TopicSpec
from ingest.eventlog.place import located
from ingest.eventlog.sqlite import SqliteAdmin
from ingest.poller import Target
from ingest.remembered import IN_MEMORY
from ingest.report import Outcome, Report, exit_code
from ingest.run import Runner, Stream
from ingest.sources import Notice
from ingest.sqlite import Database
from tests.contract.anew import delete, make_anew
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.unit.polling import (
    LETTERS,
    STREAM,
    TOPIC,
    TTL,
    Killed,
    Process,
    StumblingCheckpoints,
    StumblingPublisher,
    fails,
    poll,
    process,
)
from tests.unit.sources import NONE, PAGING, Keys, opened, reply, say

TOKEN = PAGING["cursor"]
SNAPSHOT = {**TOKEN, "version": "updated_at"}
SINCE: dict[str, Any] = {"type": "timestamp", "field": "updated_at", "since": {"param": "since"}}
ROWS = numbered(6)
IDS = [row["id"] for row in ROWS]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", ROWS, style="cursor", page_size=2)
        yield running


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    return sqlite_path


def row(id: int, second: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": id, "updated_at": f"2024-01-01T00:00:{second:02}Z", **more}


def pages(*rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Answers that lead to each other by tokens."""
    last = len(rows) - 1
    return [
        reply(json.dumps({"data": part, "next_cursor": None if n == last else f"t{n}"})) for n, part in enumerate(rows)
    ]


# ---- what is published


async def test_every_record_is_in_the_log_once_in_order_with_its_bytes(api: FakeApi, path: Path) -> None:
    raw = b'{"id":18446744073709551616,"price":1.10, "note":"\\u00e9","account":"a"}'
    api.serve("events", [*ROWS, raw], style="cursor", page_size=2)
    async with process(path) as one:
        report = await one.poll(api.url, {**SNAPSHOT, "key": "account", "occurred_at": "updated_at"})
        events = await one.events()
    assert [event.subject for event in events] == [*IDS, "18446744073709551616"]
    assert [json.loads(event.payload) for event in events[:-1]] == ROWS
    assert events[-1].payload == raw
    first = events[0]
    assert first.id == f"api:events:{IDS[0]}@{ROWS[0]['updated_at']}"
    assert (first.key, first.occurred_at, first.type) == (ROWS[0]["account"], ROWS[0]["updated_at"], "api.events")
    assert (report.outcome, report.events, report.pages, report.requests) == (Outcome.COMPLETE, 7, 4, 4)
    assert report.reason == "$.has_more is false"


async def test_a_cursor_is_saved_only_when_its_page_is_in_the_log(api: FakeApi, path: Path) -> None:
    found: list[int] = []

    class Looking(StumblingCheckpoints):
        async def save(self, *arguments: Any) -> None:
            found.append(
                await self._database.read(
                    lambda connection: connection.execute("SELECT count(*) FROM log").fetchone()[0]
                )
            )
            await super().save(*arguments)

    async with process(path, checkpoints=Looking) as one:
        await one.poll(api.url, TOKEN)
    assert found == [2, 4, 6]


async def test_at_most_one_page_is_fetched_ahead(api: FakeApi, path: Path) -> None:
    gate = asyncio.Event()
    waiting = asyncio.Event()

    class Gated:
        def __init__(self, publisher: Publisher) -> None:
            self._publisher = publisher

        async def publish(self, topic: str, messages: Sequence[Message]) -> Published:
            waiting.set()
            await gate.wait()
            return await self._publisher.publish(topic, messages)

    async with process(path, publisher=Gated) as one:
        run = asyncio.create_task(one.poll(api.url, TOKEN))
        await waiting.wait()
        await until(lambda: len(api.requests) == 2)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(api.requests) == 2
        gate.set()
        assert (await run).events == 6


async def until(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.005)


# ---- what was seen


async def test_what_did_not_change_is_not_published_again(api: FakeApi, path: Path) -> None:
    async with process(path) as one:
        await one.poll(api.url, TOKEN)
        again = await one.poll(api.url, TOKEN)
        assert await one.ids() == IDS
    assert (again.events, again.unchanged, again.outcome) == (0, 6, Outcome.COMPLETE)


async def test_a_changed_record_is_another_event(api: FakeApi, path: Path) -> None:
    listing = api.serve("events", [row(1, a=1), row(2)], style="cursor")
    async with process(path) as one:
        await one.poll(api.url, TOKEN)
        listing.replace([row(1, a=2), row(2)])
        assert (await one.poll(api.url, TOKEN)).events == 1
        first, _, changed = await one.events()
        assert (first.subject, changed.subject) == ("1", "1")
        assert first.id != changed.id


async def test_a_change_and_back_is_three_events_of_which_two_are_one(api: FakeApi, path: Path) -> None:
    listing = api.serve("events", [row(1, a="A")], style="cursor")
    async with process(path) as one:
        for state in "ABAA":
            listing.replace([row(1, a=state)])
            await one.poll(api.url, TOKEN)
        assert [json.loads(event.payload)["a"] for event in await one.events()] == ["A", "B", "A"]
        assert await one.stored() == 2


async def test_two_versions_of_an_id_in_one_page_keep_their_order(api: FakeApi, path: Path) -> None:
    say(api, pages([row(1, 1), row(1, 2), row(1, 2)]))
    async with process(path) as one:
        await one.poll(api.url, SNAPSHOT)
        report = await one.poll(api.url, SNAPSHOT)
        assert [json.loads(event.payload)["updated_at"][-3:] for event in await one.events()][:2] == ["01Z", "02Z"]
    assert report.unchanged == 1


async def test_immutable_records_are_published_once_whatever_changes(api: FakeApi, path: Path) -> None:
    listing = api.serve("events", [row(1, a=1)], style="cursor")
    async with process(path) as one:
        await one.poll(api.url, {**TOKEN, "version": "none"})
        listing.replace([row(1, a=2)])
        await one.poll(api.url, {**TOKEN, "version": "none"})
        assert [event.id for event in await one.events()] == ["api:events:1"]


async def test_equal_records_of_a_stream_without_ids_are_one(api: FakeApi, path: Path) -> None:
    say(api, pages([{"n": 1}, {"n": 2}, {"n": 1}], [{"n": 2}, {"n": 3}]))
    async with process(path) as one:
        await one.poll(api.url, {**TOKEN, "id": []})
        assert [json.loads(event.payload)["n"] for event in await one.events()] == [1, 2, 3]


async def test_only_ids_at_or_after_the_next_bound_are_remembered(api: FakeApi, path: Path) -> None:
    listing = api.serve("events", [row(n, n) for n in range(10)], style="cursor")
    keys = {**TOKEN, "incremental": {**SINCE, "lookback": "2s", "order": "asc"}}
    async with process(path) as one:
        await one.poll(api.url, keys)
        assert sorted(await one.checkpoints.seen(STREAM, [str(n) for n in range(10)])) == ["7", "8", "9"]
        listing.add(row(10, 10))
        again = await one.poll(api.url, keys)
        assert (again.events, again.unchanged) == (1, 3)
        assert sorted(await one.checkpoints.seen(STREAM, [str(n) for n in range(11)])) == ["10", "8", "9"]


async def test_a_topic_that_was_made_anew_gets_the_whole_listing_again(api: FakeApi, path: Path) -> None:
    await poll(path, api.url, SNAPSHOT)
    await delete(TOPIC, path)
    again = await poll(path, api.url, SNAPSHOT)
    assert (again.events, again.unchanged) == (len(ROWS), 0)
    once_more = await poll(path, api.url, SNAPSHOT)
    assert (once_more.events, once_more.unchanged) == (0, len(ROWS))


async def test_a_topic_made_anew_between_two_runs_of_a_process_gets_the_whole_listing_again(
    api: FakeApi, path: Path
) -> None:
    async with process(path) as one:
        stop, stream = asyncio.Event(), SNAPSHOT
        async with opened(api.url, stream, NONE) as source:
            runner = Runner(
                one.publisher, one.checkpoints, one.leases, one.holder, partial(located, SqliteAdmin(one.database))
            )
            running = asyncio.create_task(runner.forever([Stream(Target(STREAM, TOPIC, 100_000), source, 0.01)], stop))
            await until_asked(api, 6)
            await make_anew(one.log, TopicSpec(TOPIC, 1, 1, 1, -1, 1_000_000), path)
            async with asyncio.timeout(30):
                while len(await one.records()) < len(ROWS):  # noqa: ASYNC110 - a log is asked
                    await asyncio.sleep(0.01)
            await until_asked(api, len(api.requests) + 6)
            stop.set()
            await running
        assert await one.ids() == [str(id) for id in IDS]


async def test_what_was_seen_before_topics_had_ids_is_still_known(api: FakeApi, path: Path) -> None:
    await poll(path, api.url, SNAPSHOT)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE checkpoints SET seen_in = rtrim(rtrim(seen_in, '0123456789abcdef'), '/')")
        [(before,)] = connection.execute("SELECT seen_in FROM checkpoints").fetchall()
    connection.close()
    assert before.endswith(f"/{TOPIC}")
    again = await poll(path, api.url, SNAPSHOT)
    assert (again.events, again.unchanged) == (0, len(ROWS))


async def until_asked(api: FakeApi, requests: int) -> None:
    async with asyncio.timeout(30):
        while len(api.requests) < requests:  # noqa: ASYNC110 - another task is waited for
            await asyncio.sleep(0.01)


async def test_no_more_ids_are_remembered_than_configured(api: FakeApi, path: Path) -> None:
    api.serve("events", [row(n, 0) for n in range(10)], style="cursor", page_size=4)
    keys = {**TOKEN, "incremental": SINCE, "seen_limit": 3}
    async with process(path) as one:
        await one.poll(api.url, keys)
        assert len(await one.checkpoints.seen(STREAM, [str(n) for n in range(10)])) == 3
        again = await one.poll(api.url, keys)
        assert again.events + again.unchanged == 10
        assert await one.stored() == 10


async def test_a_stream_that_lists_everything_remembers_everything(api: FakeApi, path: Path) -> None:
    api.serve("events", [row(n, 10 + n) for n in range(10)], style="cursor", page_size=4)
    asked_for_all = {key: value for key, value in SINCE.items() if key != "since"}
    async with process(path) as one:
        for incremental in ({}, {"incremental": asked_for_all}):
            await one.poll(api.url, {**TOKEN, **incremental, "seen_limit": 1})
            again = await one.poll(api.url, {**TOKEN, **incremental, "seen_limit": 1})
            assert (again.events, again.unchanged) == (0, 10)


async def test_an_id_that_comes_again_much_later_in_a_run_is_not_published_again(api: FakeApi, path: Path) -> None:
    rows = numbered(IN_MEMORY + 500)
    api.serve("events", [*rows, rows[0], rows[-1]], style="cursor", page_size=1000)
    async with process(path) as one:
        report = await one.poll(api.url, {**TOKEN, "version": "none"})
    assert (report.events, report.unchanged) == (len(rows), 2)


async def test_the_page_at_which_a_feed_ends_is_not_published_again(api: FakeApi, path: Path) -> None:
    say(api, [*pages([row(9, 9), row(8, 8)], [row(7, 7), row(6, 6)])])
    feed = {**TOKEN, "incremental": {"type": "feed", "field": "updated_at"}}
    async with process(path) as one:
        await one.poll(api.url, feed)
        say(api, pages([row(10, 10), row(9, 9)], [row(8, 8), row(7, 7)], [row(6, 6)]))
        again = await one.poll(api.url, feed)
        assert (again.events, again.unchanged, again.reason) == (1, 3, "a page older than what is known")


# ---- crashes


async def crash(path: Path, url: str, keys: Keys, **steps: Any) -> None:
    """A run that is killed at the given step."""
    async with process(path, **steps) as one:
        with pytest.raises(ExceptionGroup) as died:
            await one.poll(url, keys)
        assert died.group_contains(Killed)


def publishing(**steps: Any) -> Any:
    return lambda publisher: StumblingPublisher(publisher, **steps)


def saving(**steps: Any) -> Any:
    return lambda database: StumblingCheckpoints(database, **steps)


KILL = fails(Killed())


async def test_a_crash_before_publishing_loses_nothing(api: FakeApi, path: Path) -> None:
    await crash(path, api.url, TOKEN, publisher=publishing(before={1: KILL}))
    async with process(path) as two:
        assert (await two.poll(api.url, TOKEN)).outcome == Outcome.COMPLETE
        assert await two.ids() == IDS


async def test_a_crash_between_publishing_and_saving_repeats_the_page_and_the_store_has_it_once(
    api: FakeApi, path: Path
) -> None:
    await crash(path, api.url, TOKEN, publisher=publishing(after={1: KILL}))
    async with process(path) as two:
        await two.poll(api.url, TOKEN)
        assert await two.ids() == [*IDS[:4], *IDS[2:]]
        events = await two.events()
        assert [event.id for event in events[2:4]] == [event.id for event in events[4:6]]
        assert events[4].fence > events[2].fence
        assert await two.stored() == 6


async def test_a_crash_after_saving_repeats_nothing_but_what_cannot_be_known(api: FakeApi, path: Path) -> None:
    await crash(path, api.url, TOKEN, checkpoints=saving(after={1: KILL}))
    async with process(path) as two:
        await two.poll(api.url, TOKEN)
        assert await two.ids() == IDS


async def test_the_first_page_after_a_lease_that_was_not_released_is_published_whatever_was_seen(
    api: FakeApi, path: Path
) -> None:
    async with process(path) as one:
        await one.poll(api.url, TOKEN)
    async with process(path) as dead:
        assert await dead.checkpoints.claim(STREAM, dead.holder, TTL) is not None
    async with process(path) as two:
        report = await two.poll(api.url, TOKEN)
        assert await two.ids() == [*IDS, *IDS[:2]]
        assert (report.events, report.unchanged) == (2, 4)
        assert (await two.poll(api.url, TOKEN)).events == 0


async def test_a_page_whose_events_may_be_in_the_log_keeps_the_lease_taken(api: FakeApi, path: Path) -> None:
    await crash(path, api.url, TOKEN, publisher=publishing(after={0: KILL}))
    async with process(path) as two:
        claim = await two.checkpoints.claim(STREAM, two.holder, TTL)
        assert claim is not None
        assert not claim.lease.clean


# ---- outages


async def test_an_outage_of_the_log_keeps_the_page_and_the_order(api: FakeApi, path: Path) -> None:
    away = fails(LogUnavailable("no broker"))
    async with process(path, publisher=publishing(before={1: away, 2: away}, after={4: away})) as one:
        report = await one.poll(api.url, TOKEN)
        assert report.outcome == Outcome.COMPLETE
        assert await one.ids() == [*IDS, *IDS[4:]]
        assert len(api.requests) == 3


async def test_an_outage_of_the_state_keeps_the_page_too(api: FakeApi, path: Path) -> None:
    away = fails(StoreUnavailable("no database"))
    async with process(path, checkpoints=saving(before={0: away}, after={2: away})) as one:
        report = await one.poll(api.url, TOKEN)
        assert (report.outcome, report.events, report.pages) == (Outcome.COMPLETE, 6, 3)
        assert await one.ids() == IDS


# ---- how a run ends


async def test_a_stop_in_the_middle_is_incomplete_and_the_next_run_goes_on_there(api: FakeApi, path: Path) -> None:
    stop = asyncio.Event()
    async with process(path, checkpoints=saving(after={0: stop.set})) as one:
        report = await one.poll(api.url, TOKEN, stop=stop)
        assert (report.outcome, report.pages, exit_code([report])) == (Outcome.INCOMPLETE, 1, 1)
        assert await one.ids() == IDS[:2]
        claim = await one.checkpoints.claim(STREAM, one.holder, TTL)
        assert claim is not None
        assert claim.lease.clean
        await one.leases.release(claim.lease)
    assert (await poll(path, api.url, TOKEN)).events == 4
    async with process(path) as two:
        assert await two.ids() == IDS


async def test_a_stop_before_the_first_page_changes_nothing(api: FakeApi, path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    async with process(path) as one:
        assert (await one.poll(api.url, TOKEN, stop=stop)).outcome == Outcome.INCOMPLETE
        assert await one.cursor() is None


async def test_a_listing_that_goes_in_a_circle_fails_and_was_published_once(api: FakeApi, path: Path) -> None:
    api.misbehave(itertools.cycle(map(faults.token, "AB")))
    async with process(path) as one:
        report = await one.poll(api.url, TOKEN)
        assert report.outcome == Outcome.FAILED
        assert "circle" in report.reason
        assert exit_code([report]) == 1
        assert await one.ids() == IDS


async def test_a_source_that_changed_fails_and_what_was_read_before_is_saved(api: FakeApi, path: Path) -> None:
    api.misbehave([faults.ok, faults.records_at("items")])
    async with process(path) as one:
        report = await one.poll(api.url, TOKEN)
        assert (report.outcome, report.events) == (Outcome.FAILED, 2)
        assert "$.items (2)" in report.reason
    assert (await poll(path, api.url, TOKEN)).events == 4


@pytest.mark.parametrize(
    ("fault", "outcome", "code"),
    [
        (faults.rate_limited("9999"), Outcome.UNAVAILABLE, 3),
        (faults.status(503), Outcome.UNAVAILABLE, 3),
        (faults.status(403), Outcome.FAILED, 1),
    ],
)
async def test_what_stood_in_the_way_decides_the_exit_code(
    api: FakeApi, path: Path, fault: faults.Fault, outcome: Outcome, code: int
) -> None:
    api.misbehave([faults.ok, fault, fault, fault])
    async with process(path) as one:
        report = await one.poll(api.url, TOKEN)
        assert (report.outcome, exit_code([report])) == (outcome, code)
        assert await one.ids() == IDS[:2]
    api.misbehave([])
    assert exit_code([await poll(path, api.url, TOKEN)]) == 0


async def test_a_poller_that_lost_its_stream_moves_nothing_more(api: FakeApi, path: Path) -> None:
    async with process(path) as other:
        cursor: list[bytes | None] = []

        class Overtaken(StumblingCheckpoints):
            async def save(self, *arguments: Any) -> None:
                if self.calls == 1:
                    await one.leases.release(arguments[0].lease)
                    assert await other.checkpoints.claim(STREAM, other.holder, TTL) is not None
                    cursor.append(await other.cursor())
                await super().save(*arguments)

        async with process(path, checkpoints=Overtaken) as one:
            report = await one.poll(api.url, TOKEN)
        assert report.outcome == Outcome.SUPERSEDED
        assert exit_code([report]) == 1
        assert await other.cursor() == cursor[0]


async def test_the_history_has_a_row_for_a_listing_that_found_something(api: FakeApi, path: Path) -> None:
    async with process(path) as one:
        await one.poll(api.url, TOKEN)
        await one.poll(api.url, TOKEN)
        assert [entry.note for entry in await one.history()] == ["$.has_more is false"]


async def test_a_refused_token_restarts_the_window_and_publishes_only_what_is_new(api: FakeApi, path: Path) -> None:
    stop = asyncio.Event()
    async with process(path, checkpoints=saving(after={0: stop.set})) as one:
        await one.poll(api.url, TOKEN, stop=stop)
    api.misbehave([faults.status(410)])
    async with process(path) as two:
        report = await two.poll(api.url, TOKEN)
        assert (report.outcome, report.events, report.unchanged) == (Outcome.COMPLETE, 4, 2)
        assert await two.ids() == IDS


def test_a_notice_is_kept_once_for_each_kind() -> None:
    report = Report(StreamId("api", "events"))
    for message in ("first", "second"):
        report.noticed(Notice("disorder", message))
    assert report.notices == {"disorder": "first"}


# ---- bad records

BAD = [b'{"id":2,"x":01}', b'{"id":2,"x":"\x01"}', b'{"id":2,"x":1,"x":1}', b'{"id":null}', b'["no object"]']


async def letters(one: Process) -> list[tuple[bytes | None, dict[str, str]]]:
    return [
        (record.value, {name: value.decode() for name, value in record.headers})
        for record in await one.records(LETTERS)
    ]


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_record_goes_to_the_dead_letters_with_its_bytes_and_the_reason(
    api: FakeApi, path: Path, bad: bytes
) -> None:
    say(api, [reply(b'{"data":[{"id":1},%s,{"id":3}],"next_cursor":"a"}' % bad), reply('{"data":[{"id":4}]}')])
    async with process(path) as one:
        report = await one.poll(api.url, TOKEN)
        assert await one.ids() == ["1", "3", "4"]
        [(value, headers)] = await letters(one)
    assert value == bad
    assert headers["dlq.original.topic"] == TOPIC
    assert headers["dlq.stage"] in ("decode", "validate")
    assert headers["dlq.error.message"]
    assert (report.outcome, report.events, report.dead_letters, exit_code([report])) == (Outcome.COMPLETE, 3, 1, 0)


async def test_a_record_too_large_for_its_topic_is_set_aside_and_its_neighbours_are_published(
    api: FakeApi, path: Path
) -> None:
    api.serve("events", [row(1), row(2, x="x" * 5000), row(3)], style="cursor")
    async with process(path, max_message=2000, letters_max=10_000) as one:
        report = await one.poll(api.url, TOKEN)
        assert await one.ids() == ["1", "3"]
        [(value, headers)] = await letters(one)
        assert value is not None
        assert json.loads(value) == row(2, x="x" * 5000)
        assert (headers["dlq.stage"], headers["dlq.error.code"]) == ("produce", "too_large")
        assert headers["ce_id"].startswith("api:events:2@~")
        assert (report.outcome, report.events, report.dead_letters) == (Outcome.COMPLETE, 2, 1)
        assert (await one.poll(api.url, TOKEN)).dead_letters == 0


def kept(database: Database) -> Any:
    return database.read(
        lambda connection: connection.execute("SELECT event_id, payload, headers FROM oversized").fetchall()
    )


@pytest.mark.parametrize("field", ["x", "account"])
async def test_a_record_too_large_for_any_topic_keeps_its_bytes_and_its_letter_points_there(
    api: FakeApi, path: Path, field: str
) -> None:
    large = row(2) | {field: "x" * 5000}
    api.serve("events", [row(1), large, row(3)], style="cursor")
    async with process(path, max_message=2000, letters_max=2500) as one:
        report = await one.poll(api.url, {**TOKEN, "key": "account"})
        assert await one.ids() == ["1", "3"]
        [(value, headers)] = await letters(one)
        [(event_id, payload, _)] = await kept(one.database)
    assert not value
    assert json.loads(payload) == large
    assert headers["dlq.kept"].endswith(event_id)
    assert headers["ce_subject"] == "2"
    assert (report.outcome, report.dead_letters) == (Outcome.COMPLETE, 1)


async def test_an_id_or_a_version_with_a_nul_is_a_dead_letter_and_never_published(api: FakeApi, path: Path) -> None:
    say(api, [reply(b'{"data":[{"id":"a\\u0000b"},{"id":"good","v":"1"},{"id":"c","v":"x\\u0000"}]}')])
    async with process(path) as one:
        report = await one.poll(api.url, {"version": "v"})
        assert (report.events, report.dead_letters) == (1, 2)
        assert await one.ids() == ["good"]
        codes = [dict(record.headers)["dlq.error.code"] for record in await one.records(LETTERS)]
        assert codes == [b"nul", b"nul"]


async def test_a_topic_that_cannot_hold_even_a_pointer_is_a_matter_for_a_person(api: FakeApi, path: Path) -> None:
    api.serve("events", [row(2, x="x" * 5000)], style="cursor")
    async with process(path, max_message=300, letters_max=300) as one:
        report = await one.poll(api.url, TOKEN)
        assert report.outcome is Outcome.FAILED
        assert "max_message" in report.reason
        assert await one.cursor() is None


async def test_a_broken_record_too_large_for_any_topic_is_kept_too(api: FakeApi, path: Path) -> None:
    bad = b'{"id":2,"x":01,"y":"' + b"y" * 5000 + b'"}'
    say(api, [reply(b'{"data":[{"id":1},%s]}' % bad)])
    async with process(path, letters_max=2500) as one:
        await one.poll(api.url, TOKEN)
        [(_, payload, _)] = await kept(one.database)
        [(_, headers)] = await letters(one)
    assert payload == bad
    assert headers["dlq.error.code"] == "not_json"


async def test_a_page_of_bad_records_alone_moves_the_cursor(api: FakeApi, path: Path) -> None:
    say(api, [reply(b'{"data":[{"id":1}],"next_cursor":"a"}'), reply(b'{"data":[{"id":null},7]}')])
    async with process(path) as one:
        report = await one.poll(api.url, TOKEN)
        assert (report.outcome, report.dead_letters, len(await letters(one))) == (Outcome.COMPLETE, 2, 2)


async def test_a_dead_letter_holds_no_secret(api: FakeApi, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "canary-secret-value")
    say(api, [reply(b'{"data":[{"id":1},{"id":null}]}')])
    async with process(path) as one:
        for auth in ({"bearer": "${env:CANARY}"}, {"api_key": {"in": "query", "name": "k", "value": "${env:CANARY}"}}):
            await one.poll(api.url, {**TOKEN, "auth": auth})
        assert "canary" not in repr(await letters(one))
        assert "canary" not in repr(await one.records())
        assert "canary" not in repr(await one.cursor())
