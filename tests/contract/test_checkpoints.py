"""A cursor moves only under the newest fence of its stream, with everything its page changes, or not at all."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import DEAD, FORGOTTEN, HISTORY_LIMIT, Claim, Save, Seen, StreamId, noted, stream_lease
from checkpoints.postgres import PostgresCheckpoints
from checkpoints.sqlite import SqliteCheckpoints
from ingest.errors import ConfigError, Superseded
from ingest.postgres import open_postgres
from ingest.sqlite import open_database
from tests.contract.states import LONG, SHORT, State, eventually, open_state

STREAM = StreamId("billing", "invoices")
OTHER = StreamId("billing", "charges")


@pytest.fixture(params=["sqlite", "pooled_postgres_url"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest_asyncio.fixture
async def state(url: str) -> AsyncIterator[State]:
    async with open_state(url) as state:
        yield state


async def claimed(state: State, stream: StreamId = STREAM, holder: str = "host:1:x", ttl: float = LONG) -> Claim:
    claim = await state.checkpoints.claim(stream, holder, ttl)
    assert claim is not None
    return claim


async def reclaimed(state: State, claim: Claim) -> Claim:
    await state.leases.release(claim.lease)
    return await claimed(state, claim.stream)


async def remembered(state: State, stream: StreamId = STREAM) -> dict[str, str]:
    return dict(await state.checkpoints.seen(stream, [f"r{n}" for n in range(50)]))


async def test_a_stream_that_never_ran_is_claimed_without_a_cursor(state: State) -> None:
    claim = await claimed(state)
    assert (claim.stream, claim.cursor, claim.seen) == (STREAM, None, 0)
    assert (claim.lease.name, claim.lease.fence, claim.lease.clean) == (stream_lease(STREAM), 1, True)


async def test_a_claim_gives_the_cursor_saved_last_byte_for_byte(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b'{"page": 1}'))
    last = '{"token": "a\\u0000b", "n": 18446744073709551616,  "d": 1.10, "é": "\\ud800"}'.encode()
    await state.checkpoints.save(claim, Save(last))
    again = await reclaimed(state, claim)
    assert again.cursor == last
    assert again.lease.fence == 2


async def test_a_claimed_stream_is_refused_to_others_and_other_streams_are_not(state: State) -> None:
    await claimed(state)
    assert await state.checkpoints.claim(STREAM, "host:2:y", LONG) is None
    assert (await claimed(state, OTHER, "host:2:y")).lease.fence == 1


async def test_of_twenty_claims_at_once_one_succeeds(state: State) -> None:
    async with open_state(state.url) as other:
        answers = await asyncio.gather(
            *((state, other)[n % 2].checkpoints.claim(STREAM, f"host:{n}:{n}", LONG) for n in range(20))
        )
    assert len([answer for answer in answers if answer is not None]) == 1


async def test_a_claim_sees_what_the_holder_before_saved_in_the_instant_before_it(state: State) -> None:
    for turn in range(1, 11):
        claim = await claimed(state, ttl=SHORT)
        first = b'{"turn": %d}' % turn
        await state.checkpoints.save(claim, Save(first))  # a lease that only expired is still good

        async def saves(claim: Claim = claim, turn: int = turn, first: bytes = first) -> list[bytes]:
            saved = [first]
            for n in itertools.count():
                cursor = b'{"turn": %d, "n": %d}' % (turn, n)
                try:
                    await state.checkpoints.save(claim, Save(cursor))
                except Superseded:
                    break
                saved.append(cursor)
            return saved

        async with asyncio.TaskGroup() as tasks:
            zombie = tasks.create_task(saves())
            taken = await eventually(lambda: state.checkpoints.claim(STREAM, "host:2:y", LONG))
        assert taken.cursor == zombie.result()[-1]
        await state.leases.release(taken.lease)


PLAIN = Save(b'"zombie"', seen=[Seen("r1", "v2", 5), Seen("r2", "v1", 5)], forget_below=5)
WHOLE = Save(b'"zombie"', seen=[Seen("r1", "v2", 1), Seen("r2", "v1", 2)], forget_below=2, seen_limit=0, history="done")


@pytest.mark.parametrize("save", [PLAIN, WHOLE], ids=["a page", "the end of a listing"])
async def test_a_superseded_holder_saves_nothing(state: State, save: Save) -> None:
    old = await claimed(state, ttl=SHORT)
    await state.checkpoints.save(old, Save(b'"old"', seen=[Seen("r1", "v1", 1)]))
    new = await eventually(lambda: state.checkpoints.claim(STREAM, "host:2:y", LONG))
    assert not new.lease.clean
    with pytest.raises(
        Superseded, match=r"stream:billing/invoices: the cursor was not saved: our fence 1 is .* fence 2 of host:2:y"
    ):
        await state.checkpoints.save(old, save)
    with pytest.raises(Superseded):
        await state.checkpoints.keep(old, "id", b"{}", b"")
    with pytest.raises(Superseded):
        await state.checkpoints.forget(old)
    assert [checkpoint.cursor for checkpoint in await state.checkpoints.list()] == [b'"old"']
    assert await remembered(state) == {"r1": "v1"}
    assert await state.checkpoints.history(STREAM) == []
    assert (await reclaimed(state, new)).seen == 1


async def test_a_lease_that_expired_and_was_not_taken_is_still_good(state: State) -> None:
    claim = await claimed(state, ttl=SHORT)

    async def ended() -> bool | None:
        return True if await state.leases.holder(claim.lease.name) is None else None

    await eventually(ended)
    await state.checkpoints.save(claim, Save(b'"late"'))
    assert (await claimed(state)).cursor == b'"late"'


async def test_a_claim_of_another_database_is_refused(state: State) -> None:
    claim = await claimed(state)
    stranger = Claim(OTHER, type(claim.lease)(stream_lease(OTHER), "host:1:x", 1, True), None, 0)
    with pytest.raises(Superseded, match="does not know our lease"):
        await state.checkpoints.save(stranger, Save(b"{}"))


async def test_what_was_seen_in_another_topic_is_forgotten_with_the_save_that_says_so(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r1", "v1", 1), Seen("r2", "v1", 2)], seen_in="log/a"))
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r3", "v1", 3)]))
    again = await reclaimed(state, claim)
    assert (again.seen_in, again.seen) == ("log/a", 3)
    await state.checkpoints.save(again, Save(b"3", seen=[Seen("r1", "v9", 1)], seen_in="log/b", forget_seen=True))
    assert await state.checkpoints.seen(STREAM, ["r1", "r2", "r3"]) == {"r1": "v9"}
    last = await reclaimed(state, again)
    assert (last.seen_in, last.seen) == ("log/b", 1)


async def test_seen_gives_the_version_published_last_of_the_ids_that_are_remembered(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r1", "v1", 1), Seen("r2", "v1", None)]))
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r1", "v2", 2), Seen("r3", "v1", 3)]))
    assert await state.checkpoints.seen(STREAM, ["r1", "r2", "r3", "r4"]) == {"r1": "v2", "r2": "v1", "r3": "v1"}
    assert await state.checkpoints.seen(STREAM, []) == {}
    assert await state.checkpoints.seen(OTHER, ["r1"]) == {}
    assert (await reclaimed(state, claim)).seen == 3


async def test_of_two_versions_of_an_id_in_one_page_the_last_is_remembered(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r1", "v1", 1), Seen("r1", "v2", 1)]))
    assert await remembered(state) == {"r1": "v2"}
    assert (await reclaimed(state, claim)).seen == 1


async def test_awkward_ids_are_remembered_as_they_are(state: State) -> None:
    ids = ["", "a'b", '"', "\\", "é|ü", "名", "😀", "x" * 1000, "{}", "%", "a\nb"]
    claim = await claimed(state)
    seen = [Seen(id, f"v:{id}", 0, key=f"k:{id}", dead=not id) for id in ids]
    await state.checkpoints.save(claim, Save(b"1", seen=seen))
    assert await state.checkpoints.seen(STREAM, ids) == {id: noted(f"v:{id}", not id) for id in ids}
    missing = await state.checkpoints.missing(STREAM, 1, "", 100)
    assert {one.id: one.key for one in missing} == {id: f"k:{id}" for id in ids if id}


async def test_ids_below_a_position_are_forgotten_and_those_without_one_are_kept(state: State) -> None:
    claim = await claimed(state)
    seen = [Seen("r0", "v", None), Seen("r1", "v", 1), Seen("r2", "v", 2), Seen("r3", "v", 2**53)]
    await state.checkpoints.save(claim, Save(b"1", seen=seen))
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r4", "v", 4)], forget_below=2))
    assert sorted(await remembered(state)) == ["r0", "r2", "r3", "r4"]
    assert (await reclaimed(state, claim)).seen == 4


async def test_an_id_that_moves_on_is_kept_while_what_was_at_its_place_is_forgotten(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r1", "v1", 1), Seen("r2", "v1", 1)], forget_below=1))
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r1", "v2", 9), Seen("r3", "v1", 9)], forget_below=9))
    assert await remembered(state) == {"r1": "v2", "r3": "v1"}
    assert (await reclaimed(state, claim)).seen == 2


async def test_a_limit_keeps_the_ids_with_the_highest_positions(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen(f"r{n}", "v", n) for n in range(8)], seen_limit=5))
    assert sorted(await remembered(state)) == ["r3", "r4", "r5", "r6", "r7"]
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r8", "v", 8), Seen("r9", "v", None)], seen_limit=5))
    assert sorted(await remembered(state)) == ["r5", "r6", "r7", "r8", "r9"]
    assert (await reclaimed(state, claim)).seen == 5


async def test_a_limit_holds_for_ids_without_positions_too(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen(f"r{n}", "v", None) for n in range(8)], seen_limit=5))
    assert len(await remembered(state)) == 5
    assert (await reclaimed(state, claim)).seen == 5


async def test_a_limit_of_one_stream_leaves_the_others_alone(state: State) -> None:
    claim, other = await claimed(state), await claimed(state, OTHER, "host:2:y")
    await state.checkpoints.save(other, Save(b"1", seen=[Seen("r1", "v", 1)]))
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r2", "v", 2)], forget_below=5, seen_limit=0))
    assert await remembered(state, OTHER) == {"r1": "v"}


async def test_a_page_of_many_ids_is_saved_and_found_whole(state: State) -> None:
    claim = await claimed(state)
    ids = [f"id-{n}" for n in range(40_000)]
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen(id, "v", n) for n, id in enumerate(ids)]))
    assert len(await state.checkpoints.seen(STREAM, ids)) == len(ids)


async def test_the_history_has_an_entry_per_note_newest_first_at_most_a_hundred(state: State) -> None:
    claim = await claimed(state)
    other = await claimed(state, OTHER, "host:2:y")
    await state.checkpoints.save(other, Save(b'"other"', history="first"))
    await state.checkpoints.save(claim, Save(b'"unnoted"'))
    for n in range(HISTORY_LIMIT + 5):
        await state.checkpoints.save(claim, Save(b"%d" % n, history=f"listing {n}"))
    history = await state.checkpoints.history(STREAM)
    assert [entry.note for entry in history] == [f"listing {n}" for n in reversed(range(5, HISTORY_LIMIT + 5))]
    assert (history[0].stream, history[0].cursor, history[0].fence) == (STREAM, b"104", claim.lease.fence)
    assert history[0].saved_at.endswith("Z")
    assert [entry.note for entry in await state.checkpoints.history(OTHER)] == ["first"]


async def test_a_forgotten_stream_is_as_if_it_had_never_run_but_for_its_history(state: State) -> None:
    claim, other = await claimed(state), await claimed(state, OTHER, "host:2:y")
    await state.checkpoints.save(other, Save(b'"kept"', seen=[Seen("r1", "v", 1)]))
    await state.checkpoints.save(claim, Save(b'"cursor"', seen=[Seen("r1", "v", 1)], history="listing done"))
    await state.checkpoints.forget(claim)
    assert await remembered(state) == {}
    assert [(entry.note, entry.cursor) for entry in await state.checkpoints.history(STREAM)] == [
        (FORGOTTEN, b'"cursor"'),
        ("listing done", b'"cursor"'),
    ]
    again = await reclaimed(state, claim)
    assert (again.cursor, again.seen, again.lease.fence) == (None, 0, 2)
    assert [checkpoint.stream for checkpoint in await state.checkpoints.list()] == [OTHER]
    assert await remembered(state, OTHER) == {"r1": "v"}


async def test_a_stream_that_never_ran_may_be_forgotten(state: State) -> None:
    await state.checkpoints.forget(await claimed(state))
    assert [entry.cursor for entry in await state.checkpoints.history(STREAM)] == [b"null"]


async def test_a_kept_record_may_be_kept_twice_under_one_reference(state: State) -> None:
    claim = await claimed(state)
    first = await state.checkpoints.keep(claim, "billing:invoices:1", b"\x00\xff", b"headers")
    assert first == await state.checkpoints.keep(claim, "billing:invoices:1", b"other", b"")
    assert first == "oversized:billing:invoices:1"


async def test_the_list_shows_every_cursor_with_its_holder_sorted_by_stream(state: State) -> None:
    claim, other = await claimed(state), await claimed(state, OTHER, "host:2:y")
    await state.checkpoints.save(claim, Save(b'"i"'))
    await state.checkpoints.save(other, Save(b'"c"'))
    await state.leases.release(claim.lease)
    charges, invoices = await state.checkpoints.list()
    assert (charges.stream, charges.cursor, charges.fence, charges.holder) == (OTHER, b'"c"', 1, "host:2:y")
    assert (invoices.stream, invoices.cursor, invoices.holder) == (STREAM, b'"i"', None)
    assert charges.updated_at.endswith("Z")


async def test_a_sqlite_file_that_was_not_migrated_is_refused_with_what_to_run(sqlite_path: Path) -> None:
    async with open_database(sqlite_path) as database:
        with pytest.raises(ConfigError, match="ingest migrate"):
            await SqliteCheckpoints(database).claim(STREAM, "host:1:x", LONG)


async def test_a_postgres_that_was_not_migrated_is_refused_with_what_to_run(bare_postgres_url: str) -> None:
    async with open_postgres(bare_postgres_url) as postgres:
        with pytest.raises(ConfigError, match="ingest migrate"):
            await PostgresCheckpoints(postgres).claim(STREAM, "host:1:x", LONG)


# ---- partitions

FEW = ["a", "b|c", "~~é", "#feed", "gone"]


@pytest.mark.parametrize("history", [None, "done"], ids=["a page", "the end of a listing"])
async def test_partitions_move_with_the_cursor_of_their_stream(state: State, history: str | None) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", partitions={"a": b'{"n": 1.10}', "b|c": b"1", "gone": b"1"}))
    await state.checkpoints.save(
        claim, Save(b"2", partitions={"b|c": b"2", "~~é": b"2", "gone": None, "never": None}, history=history)
    )
    assert await state.checkpoints.cursors(STREAM, FEW) == {"a": b'{"n": 1.10}', "b|c": b"2", "~~é": b"2"}
    assert await state.checkpoints.cursors(OTHER, FEW) == {}
    assert [(c.cursor, c.partitions) for c in await state.checkpoints.list()] == [(b"2", 3)]
    assert (await reclaimed(state, claim)).cursor == b"2"


@pytest.mark.parametrize("history", [None, "done"], ids=["a page", "the end of a listing"])
async def test_a_superseded_holder_moves_no_partition(state: State, history: str | None) -> None:
    old = await claimed(state, ttl=SHORT)
    await state.checkpoints.save(old, Save(b"1", partitions={"a": b"1", "gone": b"1"}))
    await eventually(lambda: state.checkpoints.claim(STREAM, "host:2:y", LONG))
    with pytest.raises(Superseded):
        await state.checkpoints.save(old, Save(b"2", partitions={"a": b"2", "gone": None}, history=history))
    assert await state.checkpoints.cursors(STREAM, FEW) == {"a": b"1", "gone": b"1"}


@pytest.mark.parametrize("history", [None, "done"], ids=["a page", "the end of a listing"])
async def test_ids_are_forgotten_by_the_order_of_their_own_partition(state: State, history: str | None) -> None:
    claim = await claimed(state)
    for partition in ("a", "b"):
        seen = [Seen(f"{partition}{n}", "v1", n) for n in (1, 5)]
        await state.checkpoints.save(claim, Save(b"1", partition=partition, seen=seen))
    last = [Seen("a9", "v1", 9)]
    await state.checkpoints.save(claim, Save(b"2", partition="a", seen=last, forget_below=5, history=history))
    assert set(await state.checkpoints.seen(STREAM, ["a1", "a5", "a9", "b1", "b5"])) == {"a5", "a9", "b1", "b5"}
    assert (await reclaimed(state, claim)).seen == 4


async def test_a_limit_keeps_the_partitions_that_were_saved_last(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", partitions={"#feed": b"1", **dict.fromkeys("abcd", b"1")}))
    await state.checkpoints.save(claim, Save(b"2", partitions={"e": b"2", "f": b"2"}, partitions_limit=2))
    assert set(await state.checkpoints.cursors(STREAM, [*"abcdef", "#feed"])) == {"e", "f", "#feed"}
    await state.checkpoints.save(claim, Save(b"3", partitions_limit=2))
    assert [(c.cursor, c.partitions) for c in await state.checkpoints.list()] == [(b"3", 3)]


async def test_a_forgotten_stream_has_no_partitions(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b'"own"', partitions={"a": b"1", "z": b"1"}))
    await state.checkpoints.forget(claim)
    assert await state.checkpoints.cursors(STREAM, ["a", "z"]) == {}
    assert [entry.cursor for entry in await state.checkpoints.history(STREAM)] == [b'"own"']


# ---- sweeps


async def gone(state: State, sweep: int, *, twice: bool = False, limit: int = 10) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    while part := await state.checkpoints.missing(STREAM, sweep, found[-1][0] if found else "", limit, twice=twice):
        found += [(one.id, one.key) for one in part]
    return sorted(found)


async def test_an_empty_id_is_missing_too(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("", "v1", None), Seen("a", "v1", None)]))
    assert await gone(state, 7) == [("", None), ("a", None)]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_what_a_sweep_did_not_list_is_missing_under_its_own_key(state: State, limit: int) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen(f"r{n}", "v1", None, f"k{n}") for n in range(6)]))
    await state.checkpoints.save(
        claim, Save(b"2", seen=[Seen("r0", "v2", None), Seen("new", "v1", None)], sweep=7, listed=["r1", "r9"])
    )
    await state.checkpoints.save(claim, Save(b"3", sweep=7, listed=["r5"]))
    assert await gone(state, 7, limit=limit) == [("r2", "k2"), ("r3", "k3"), ("r4", "k4")]
    assert len(await gone(state, 8, limit=limit)) == 7
    assert (await remembered(state))["r1"] == "v1"


async def test_a_dead_record_is_missing_no_more_until_it_lives_again(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen("r1", "v1", None), Seen("r2", "v1", None)], sweep=1))
    await state.checkpoints.save(claim, Save(b"2", seen=[Seen("r1", "d", None, dead=True)], sweep=2))
    assert await gone(state, 2) == [("r2", None)]
    assert await remembered(state) == {"r1": DEAD + "d", "r2": "v1"}
    await state.checkpoints.save(claim, Save(b"3", seen=[Seen("r1", "v1", None)], sweep=3))
    assert await remembered(state) == {"r1": "v1", "r2": "v1"}
    assert await gone(state, 4) == [("r1", None), ("r2", None)]


async def test_where_pages_may_skip_rows_only_the_second_miss_in_a_row_counts(state: State) -> None:
    claim = await claimed(state)
    await state.checkpoints.save(claim, Save(b"1", seen=[Seen(f"r{n}", "v", None) for n in (1, 2, 3)], sweep=1))
    await state.checkpoints.save(claim, Save(b"2", sweep=2, listed=["r1"]))
    assert await gone(state, 2, twice=True) == []
    await state.checkpoints.save(claim, Save(b"3", sweep=2, missed=True))
    await state.checkpoints.save(claim, Save(b"4", sweep=3, listed=["r2"]))
    assert await gone(state, 3, twice=True) == [("r3", None)]
    await state.checkpoints.save(claim, Save(b"5", sweep=3, missed=True))
    await state.checkpoints.save(claim, Save(b"6", sweep=4, seen=[Seen("r1", "w", None)]))
    assert await gone(state, 4, twice=True) == [("r3", None)]  # r2 was missed once, r1 is back


async def test_a_superseded_holder_notes_no_sweep(state: State) -> None:
    old = await claimed(state, ttl=SHORT)
    await state.checkpoints.save(old, Save(b"1", seen=[Seen("r1", "v1", None)], sweep=1))
    await eventually(lambda: state.checkpoints.claim(STREAM, "host:2:y", LONG))
    with pytest.raises(Superseded):
        await state.checkpoints.save(old, Save(b"2", sweep=2, listed=["r1"], missed=True))
    assert await gone(state, 2) == [("r1", None)]
    assert await gone(state, 3, twice=True) == []


async def test_keys_that_are_not_the_id_are_told(state: State) -> None:
    claim = await claimed(state)
    seen = [Seen("r1", "v", None, "k1"), Seen("r2", "v", None), Seen("r3", "v", None, "k3", dead=True)]
    await state.checkpoints.save(claim, Save(b"1", seen=seen))
    assert await state.checkpoints.keys(STREAM, ["r1", "r2", "r3", "r4"]) == {"r1": "k1", "r3": "k3"}
    assert await state.checkpoints.keys(OTHER, ["r1"]) == {}
