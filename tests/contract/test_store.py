"""What every event store does: rows once, offsets with them, payloads to the byte, and bad rows by name."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.store import EventStore, Query, Row, Written
from consumers.store.postgres import PostgresStore
from consumers.store.sqlite import SqliteStore
from ingest.errors import BadRecord, ConfigError, Superseded
from ingest.event import Event
from ingest.eventlog import Span
from ingest.postgres import open_postgres
from ingest.sqlite import open_database, path_of
from migrations.runner import migrate
from tests.texts import json_texts, texts

CONSUMER, TOPIC = "warehouse", "billing.invoices"
HOSTILE = {
    "integers beyond 2^53": b'{"n":18446744073709551616,"m":-9007199254740993}',
    "decimals": b'{"amount":1.10,"zero":-0.0,"tiny":1e-400}',
    "a number beyond a double": b"[1e400]",
    "key order": b'{"z":1,"a":2,"z":3}',
    "an escaped NUL": rb'{"a":"x\u0000y"}',
    "an escaped backslash before u0000": rb'{"a":"\\u0000"}',
    "a lone surrogate": rb'{"a":"\ud800"}',
    "emoji": '{"a":"\N{PILE OF POO}","b":"\\ud83d\\udca9"}'.encode(),
    "raw line ends and tabs between tokens": b'{\r\n\t"a": [1,\n2\t]\r\n}\n',
    "backslashes": rb'{"path":"C:\\temp\\new","n":"\n","N":"\\N","dot":"\\."}',
    "a scalar": b"null",
    "depth": b"[" * 100 + b"]" * 100,
}
NOT_JSON = {
    "empty": b"",
    "text": b"hello",
    "cut short": b'{"a":1',
    "two values": b"{} {}",
    "a raw line end in a string": b'{"a":"x\ny"}',
    "NaN": b"[NaN]",
    "a NUL behind the value": b"{}\0",
    "not UTF-8": b'{"a":"\xff"}',
    "an encoded surrogate": b'{"a":"\xed\xa0\x80"}',
}
NO_TIMES = ["", "now", "yesterday", "2024-01-01T00:00:00", "2024-13-01T00:00:00Z", "infinity", "\\N"]
EVERYTHING = Query()
_numbers = count()


def event(id: str = "a", payload: bytes = b"{}", **changes: object) -> Event:
    values: dict[str, object] = {
        "id": id,
        "source": "billing",
        "stream": "invoices",
        "key": "k",
        "type": "billing.invoices",
        "subject": id,
        "occurred_at": "2024-05-06T07:08:09Z",
        "fence": 1,
        "payload": payload,
        "content_type": "application/json",
        "topic": TOPIC,
        "partition": 0,
        "offset": next(_numbers),
        "published_ms": 0,
    }
    return Event(**{**values, **changes})  # type: ignore[arg-type]


def span(start: int, end: int, partition: int = 0) -> Span:
    return Span(TOPIC, partition, start, end)


async def rows(store: EventStore, query: Query = EVERYTHING) -> list[Row]:
    return [row async for row in store.events(query)]


async def payloads(store: EventStore) -> dict[str, bytes]:
    return {row.event_id: row.payload.encode() for row in await rows(store)}


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    if url.startswith("sqlite"):
        async with open_database(path_of(url)) as database:
            yield SqliteStore(database)
    else:
        async with open_postgres(url) as postgres:
            yield PostgresStore(postgres)


@pytest.fixture(params=["postgres", "sqlite"])
def bare_url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("bare_postgres_url")
        return url
    path: Path = request.getfixturevalue("sqlite_path")
    return f"sqlite:///{path}"


@pytest.fixture(params=["pooled_postgres_url", "sqlite_path"])
def plain_url(request: pytest.FixtureRequest) -> str:
    """Migrated on Postgres; a SQLite file is migrated by `url`."""
    place: str | Path = request.getfixturevalue(request.param)
    return place if isinstance(place, str) else f"sqlite:///{place}"


@pytest_asyncio.fixture
async def url(plain_url: str) -> str:
    await migrate(plain_url)
    return plain_url


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    async with opened(url) as one:
        yield one


# Rows


async def test_a_written_event_is_a_row_with_all_that_it_said(store: EventStore) -> None:
    one = event(
        "billing:invoices:1@7", b'{"id":1}', key="cus_1", partition=3, offset=41, type="billing.invoices.deleted"
    )
    assert await store.write(CONSUMER, [one], []) == Written(1, 0)
    [row] = await rows(store)
    assert row._replace(ingested_at="") == Row(
        "billing:invoices:1@7",
        "billing",
        "invoices",
        "cus_1",
        "billing.invoices.deleted",
        "2024-05-06T07:08:09Z",
        "",
        TOPIC,
        3,
        41,
        '{"id":1}',
    )


async def test_the_second_write_inserts_nothing_and_counts_duplicates(store: EventStore) -> None:
    batch = [event(str(n)) for n in range(700)]
    assert await store.write(CONSUMER, batch, []) == Written(700, 0)
    for _ in range(3):
        assert await store.write(CONSUMER, batch, []) == Written(0, 700)
    assert await store.count(EVERYTHING) == 700


async def test_of_two_events_with_one_id_in_a_batch_the_first_is_kept(store: EventStore) -> None:
    batch = [event("a", b"1"), event("b", b"2"), event("a", b"3")]
    assert await store.write(CONSUMER, batch, []) == Written(2, 1)
    assert await payloads(store) == {"a": b"1", "b": b"2"}


async def test_a_batch_of_new_and_known_events_inserts_the_new_ones_only(store: EventStore) -> None:
    await store.write(CONSUMER, [event("b", b'"first"')], [])
    for n, batch in enumerate(["abc", "bcd", "bcde"]):
        written = await store.write(CONSUMER, [event(id, b"%d" % n) for id in batch], [])
        assert written.inserted == {0: 2, 1: 1, 2: 1}[n]
        assert written.duplicates == len(batch) - written.inserted
    assert await payloads(store) == {"a": b"0", "b": b'"first"', "c": b"0", "d": b"1", "e": b"2"}


async def test_a_store_that_saw_duplicates_goes_on_taking_new_events(store: EventStore) -> None:
    await store.write(CONSUMER, [event("0")], [])
    await store.write(CONSUMER, [event("0")], [])
    for n in range(1, 80):
        assert await store.write(CONSUMER, [event(str(n)), event(f"{n}'")], []) == Written(2, 0)
    assert await store.write(CONSUMER, [event("7"), event("new")], []) == Written(1, 1)


async def test_nothing_to_write_is_no_error(store: EventStore) -> None:
    assert await store.write(CONSUMER, [], []) == Written(0, 0)


# Offsets


async def test_a_consumer_that_never_wrote_a_topic_has_no_offsets(store: EventStore) -> None:
    await store.write(CONSUMER, [], [span(0, 5)])
    assert await store.offsets("another", TOPIC) == {}
    assert await store.offsets(CONSUMER, "another") == {}


async def test_offsets_move_with_the_rows(store: EventStore) -> None:
    assert await store.write(CONSUMER, [event()], [span(0, 5), span(7, 9, partition=2)]) == Written(1, 0)
    assert await store.offsets(CONSUMER, TOPIC) == {0: 5, 2: 9}
    await store.write(CONSUMER, [event("b")], [span(5, 6)])
    assert await store.offsets(CONSUMER, TOPIC) == {0: 6, 2: 9}


async def test_spans_without_events_move_offsets(store: EventStore) -> None:
    assert await store.write(CONSUMER, [], [span(0, 5)]) == Written(0, 0)
    assert await store.offsets(CONSUMER, TOPIC) == {0: 5}


@pytest.mark.parametrize("start", [4, 6, 9])
async def test_a_span_that_starts_elsewhere_stores_nothing_of_its_batch(store: EventStore, start: int) -> None:
    await store.write(CONSUMER, [], [span(0, 5), span(0, 5, partition=1)])
    with pytest.raises(Superseded, match=rf"{CONSUMER}.*{TOPIC}\[1\] from {start} .* is 5"):
        await store.write(CONSUMER, [event()], [span(5, 8), span(start, 9, partition=1)])
    assert await store.offsets(CONSUMER, TOPIC) == {0: 5, 1: 5}
    assert await store.count(EVERYTHING) == 0


async def test_a_write_that_is_repeated_with_its_spans_is_superseded(store: EventStore) -> None:
    await store.write(CONSUMER, [event()], [span(0, 5)])
    with pytest.raises(Superseded):
        await store.write(CONSUMER, [event()], [span(0, 5)])
    assert await store.offsets(CONSUMER, TOPIC) == {0: 5}


@pytest.mark.parametrize("known", [True, False], ids=["row exists", "row absent"])
async def test_of_two_writers_on_one_span_exactly_one_wins(url: str, known: bool) -> None:
    async with opened(url) as one, opened(url) as other:
        for start in range(10):
            partition = 0 if known else start
            batches = [[event(f"{start}-{who}-{n}") for n in range(50)] for who in "ab"]
            outcomes = await asyncio.gather(
                one.write(CONSUMER, batches[0], [span(start, start + 1, partition)]),
                other.write(CONSUMER, batches[1], [span(start, start + 1, partition)]),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Superseded", "Written"]
        assert await one.count(EVERYTHING) == 500


async def test_two_writers_that_share_events_both_succeed_and_the_rows_are_exact(url: str) -> None:
    async with opened(url) as one, opened(url) as other:
        inserted = 0
        for turn in range(10):
            shared = [f"{turn}-{n}" for n in range(300)]
            written = await asyncio.gather(
                one.write(CONSUMER, [event(id) for id in shared[:200]], [span(turn, turn + 1)]),
                other.write(
                    CONSUMER, [event(id) for id in reversed(shared[100:])], [span(turn, turn + 1, partition=1)]
                ),
            )
            inserted += sum(one.inserted for one in written)
        assert inserted == await one.count(EVERYTHING) == 3000
        assert await one.offsets(CONSUMER, TOPIC) == {0: 10, 1: 10}


# Payloads


async def test_payloads_arrive_byte_exact(store: EventStore) -> None:
    await store.write(CONSUMER, [event(name, body) for name, body in HOSTILE.items()], [])
    assert await payloads(store) == HOSTILE


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(json_texts, min_size=1, max_size=30))
async def test_any_json_arrives_byte_exact(store: EventStore, bodies: list[str]) -> None:
    batch = {f"{next(_numbers)}": body.encode() for body in bodies}
    await store.write(CONSUMER, [event(id, body) for id, body in batch.items()], [])
    for id, body in batch.items():
        [row] = await rows(store, Query(event_id=id))
        assert row.payload.encode() == body


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(id=texts, key=texts)
async def test_any_text_without_nul_is_an_id_and_a_key(store: EventStore, id: str, key: str) -> None:
    id = f"{id}{next(_numbers)}{id}"
    assert await store.write(CONSUMER, [event(id, key=key)], []) == Written(1, 0)
    assert await store.write(CONSUMER, [event(id), event(f"{id}'")], []) == Written(1, 1)
    [row] = await rows(store, Query(event_id=id))
    assert (row.event_id, row.key) == (id, key)


@pytest.mark.parametrize(
    "text", ["\\N", "\\.", "a\\", "\\t", "a\tb", "a\nb", "a\r\nb", "", " ", "'", '"', "\x7f\x01", "é"]
)
async def test_a_text_that_copy_gives_a_meaning_arrives_as_it_is(store: EventStore, text: str) -> None:
    one = event(text, source=text, stream=text, key=text, type=text, topic=text)
    await store.write(CONSUMER, [event("before"), one, event("~after")], [])
    [row] = await rows(store, Query(event_id=text))
    assert [row.event_id, row.source, row.stream, row.key, row.type, row.topic] == [text] * 6
    assert await store.count(EVERYTHING) == 3


@pytest.mark.parametrize(
    ("content_type", "body", "stored"),
    [
        ("application/json; charset=utf-8", b'{"a": 1}', '{"a": 1}'),
        ("application/cloudevents+json", b'{"a": 1}', '{"a": 1}'),
        ("text/plain", 'say "h\u00e9"\n\0'.encode(), '"say \\"h\u00e9\\"\\n\\u0000"'),
        ("application/x-www-form-urlencoded", b"a=1&b=2", '"a=1&b=2"'),
        ("application/octet-stream", b"\xff\xfe", '"//4="'),
        ("text/plain", b"", '""'),
    ],
)
async def test_a_body_that_is_no_json_is_stored_as_a_string(
    store: EventStore, content_type: str, body: bytes, stored: str
) -> None:
    await store.write(CONSUMER, [event("a", body, content_type=content_type)], [])
    [row] = await rows(store)
    assert row.payload == stored


@pytest.mark.parametrize(
    ("occurred_at", "stored"),
    [
        (None, None),
        ("2024-05-06T07:08:09.123456Z", "2024-05-06T07:08:09.123456Z"),
        ("2024-05-06T09:08:09+02:00", "2024-05-06T07:08:09Z"),
        ("2024-05-06 07:08:09Z", "2024-05-06T07:08:09Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
    ],
)
async def test_the_time_of_an_event_is_kept_in_utc(
    store: EventStore, occurred_at: str | None, stored: str | None
) -> None:
    await store.write(CONSUMER, [event(occurred_at=occurred_at)], [])
    [row] = await rows(store)
    assert row.occurred_at == stored


# Bad records


async def refused(store: EventStore, bad: Event, *, known: Sequence[Event] = ()) -> BadRecord:
    """Writes it between good ones, and shows that nothing of the batch is there."""
    before = await store.count(EVERYTHING)
    with pytest.raises(BadRecord) as caught:
        await store.write(CONSUMER, [*known, event("good1"), bad, event("good2")], [span(0, 3)])
    assert await store.count(EVERYTHING) == before
    assert await store.offsets(CONSUMER, TOPIC) == {}
    assert caught.value.stage == "write"
    assert caught.value.code
    return caught.value


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_a_payload_that_is_no_json_is_a_bad_record(store: EventStore, body: bytes) -> None:
    await refused(store, event("bad", body))
    assert await store.write(CONSUMER, [event("good1"), event("good2")], [span(0, 3)]) == Written(2, 0)


async def test_a_bad_record_among_duplicates_is_one_too(store: EventStore) -> None:
    known = [event("known")]
    await store.write(CONSUMER, known, [])
    await refused(store, event("bad", b"nonsense"), known=known)
    await refused(store, event("bad", b"nonsense"), known=known)


@pytest.mark.parametrize("field", ["id", "key", "source", "stream", "type", "topic"])
@pytest.mark.parametrize("text", ["a\0b", "\0", "\ud800"], ids=["NUL inside", "only NUL", "lone surrogate"])
async def test_a_text_that_no_store_can_hold_is_a_bad_record(store: EventStore, field: str, text: str) -> None:
    await refused(store, event(**{"id": "bad", field: text}))  # type: ignore[arg-type]


@pytest.mark.parametrize("occurred_at", NO_TIMES)
async def test_a_time_that_is_none_is_a_bad_record(store: EventStore, occurred_at: str) -> None:
    error = await refused(store, event("bad", occurred_at=occurred_at))
    assert error.code == "bad_time"


async def test_a_database_without_the_tables_names_the_command_that_makes_them(bare_url: str) -> None:
    async with opened(bare_url) as store:
        for attempt in (
            store.write(CONSUMER, [event()], [span(0, 1)]),
            store.write(CONSUMER, [event()], []),
            store.offsets(CONSUMER, TOPIC),
            store.count(EVERYTHING),
            rows(store),
        ):
            with pytest.raises(ConfigError, match="ingest migrate"):
                await attempt


# Listing


async def test_events_are_listed_in_the_order_in_which_they_were_stored(store: EventStore) -> None:
    for turn in ("z", "m", "a"):
        await store.write(CONSUMER, [event(f"{turn}{9 - n}") for n in range(3)], [])
    expected = ["z9", "z8", "z7", "m9", "m8", "m7", "a9", "a8", "a7"]
    listed = await rows(store)
    assert [row.event_id for row in listed] == expected
    assert [row.ingested_at for row in listed] == sorted(row.ingested_at for row in listed)
    assert all(row.ingested_at.endswith("Z") for row in listed)


@pytest.mark.parametrize("limit", [0, 1, 4, 600, 5000])
async def test_a_limit_gives_the_newest_oldest_of_them_first(store: EventStore, limit: int) -> None:
    names = [f"{n:04d}" for n in range(1300)]
    for start in range(0, len(names), 100):
        await store.write(CONSUMER, [event(id) for id in names[start : start + 100]], [])
    listed = [row.event_id for row in await rows(store, Query(limit=limit))]
    assert listed == names[len(names) - min(limit, len(names)) :]
    assert [row.event_id for row in await rows(store)] == names


async def test_filters_narrow_the_listing_the_limit_and_the_count(store: EventStore) -> None:
    batch = [event(f"{n:02d}", source="ab"[n % 2], stream="xyz"[n % 3], key=str(n % 4)) for n in range(24)]
    await store.write(CONSUMER, batch, [])
    for query, expected in [
        (Query(source="a"), [one for one in batch if one.source == "a"]),
        (Query(source="a", stream="x"), [one for one in batch if (one.source, one.stream) == ("a", "x")]),
        (Query(key="3"), [one for one in batch if one.key == "3"]),
        (Query(event_id="05"), [batch[5]]),
        (Query(event_id="05", source="a"), []),
        (Query(source="nobody"), []),
    ]:
        ids = [one.id for one in expected]
        assert [row.event_id for row in await rows(store, query)] == ids
        assert await store.count(query) == len(ids)
        assert [row.event_id for row in await rows(store, query._replace(limit=2))] == ids[-2:]
        assert await store.count(query._replace(limit=2)) == len(ids)


async def test_a_listing_may_be_left_early_and_writing_goes_on(store: EventStore) -> None:
    await store.write(CONSUMER, [event(str(n)) for n in range(1200)], [])
    listing = store.events(EVERYTHING)
    async for _ in listing:
        assert await store.write(CONSUMER, [event("during")], []) == Written(1, 0)
        break
    await listing.aclose()  # type: ignore[attr-defined]
    assert await store.count(EVERYTHING) == 1201


async def test_a_listing_ends_at_what_was_stored_when_it_began(store: EventStore) -> None:
    await store.write(CONSUMER, [event(str(n)) for n in range(1200)], [])
    listed = 0
    async for _ in store.events(EVERYTHING):
        if listed % 100 == 0:
            await store.write(CONSUMER, [event(f"later{listed}")], [])
        listed += 1
    assert listed == 1200


async def test_offsets_of_two_topics_that_had_the_same_name_are_kept_apart(store: EventStore) -> None:
    await store.write(CONSUMER, [event("a")], [Span(TOPIC, 0, 0, 10, "old")])
    assert await store.offsets(CONSUMER, TOPIC, "new") == {}
    assert await store.other_ids(CONSUMER, TOPIC, "new") == ["old"]
    await store.write(CONSUMER, [event("b")], [Span(TOPIC, 0, 0, 3, "new")])
    assert await store.offsets(CONSUMER, TOPIC, "new") == {0: 3}
    assert await store.offsets(CONSUMER, TOPIC, "old") == {0: 10}
    assert await store.other_ids(CONSUMER, TOPIC, "old") == ["new"]
    with pytest.raises(Superseded):
        await store.write(CONSUMER, [event("c")], [Span(TOPIC, 0, 10, 13, "new")])
    assert await store.count(EVERYTHING) == 2


async def test_offsets_kept_without_an_id_become_those_of_the_topic_that_is_read_first(store: EventStore) -> None:
    await store.write(CONSUMER, [], [Span(TOPIC, 0, 0, 10), Span(TOPIC, 1, 0, 4), Span("other", 0, 0, 1)])
    assert await store.offsets(CONSUMER, TOPIC, "first") == {0: 10, 1: 4}
    assert await store.offsets(CONSUMER, TOPIC, "second") == {}
    assert await store.other_ids(CONSUMER, TOPIC, "first") == []
    await store.write(CONSUMER, [], [Span(TOPIC, 0, 10, 12, "first")])
    assert await store.offsets(CONSUMER, TOPIC, "first") == {0: 12, 1: 4}
    assert await store.offsets(CONSUMER, "other") == {0: 1}


async def test_batches_of_both_topics_move_together(store: EventStore) -> None:
    await store.write(CONSUMER, [], [Span(TOPIC, 0, 0, 10, "old"), Span(TOPIC, 0, 0, 3, "new")])
    await store.write(CONSUMER, [], [Span(TOPIC, 0, 3, 5, "new"), Span(TOPIC, 0, 10, 11, "old")])
    assert await store.offsets(CONSUMER, TOPIC, "old") == {0: 11}
    assert await store.offsets(CONSUMER, TOPIC, "new") == {0: 5}
