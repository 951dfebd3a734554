"""The groups of runs that are compared with each other.

A group runs its contenders in turn, A B C A B C …, so that what else the machine does falls on all of them alike.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import connect, latency, peers, queues
from tests.bench import contenders as c
from tests.bench.measure import Failed
from tests.bench.peers import Unavailable
from tests.bench.product import ASCENDING, EVERYTHING, Place
from tests.bench.results import Results
from tests.bench.servers import Api, Servers, api, query

LARGER = 5  # times N for the rows about memory
SEVERAL = 10  # records for what a start alone costs
LATENCY_RATE, LATENCY_SECONDS = 1000, 20.0  # events a second
SLOW_LATENCY, SLOW_PAGES, SLOW_PAGE = 50, 60, 100  # milliseconds for each page, pages, records of one
SINGER_RUNS = 1  # it takes minutes, and its ratio is far from its target
CONNECT_RUNS = 3  # most of each is the JVM's start
MEMORY_RUNS = 3


@dataclass(frozen=True)
class Bench:
    servers: Servers
    results: Results
    records: int
    runs: int
    directory: Path
    say: Callable[[str], None]

    @contextmanager
    def workplace(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            yield Path(directory)

    async def attempt(self, contender: str, once: Callable[[], Awaitable[None]]) -> None:
        """A contender that cannot be run is noted, and the others go on."""
        if contender in self.results.not_run:
            return
        try:
            await once()
        except (Unavailable, Failed) as exc:
            self.results.not_run[contender] = str(exc)
            self.say(f"{contender}: not run: {exc}")
        else:
            run = self.results.runs[contender][-1]
            self.say(f"{contender}: {run.rate:,.0f} records/s, {run.cpu_100k:.2f} CPU s/100k, {run.peak:.0f} MB")

    async def product(
        self, stack: AsyncExitStack, source: Api, *, topic: str | None = None, incremental: str = ASCENDING
    ) -> Place:
        """A place on Kafka and Postgres with a database of its own, and a topic of its own unless one is given."""
        directory = stack.enter_context(self.workplace())
        database = await stack.enter_async_context(self.servers.database())
        if topic is None:
            topic = await stack.enter_async_context(self.servers.topic())
        return Place(directory, source, topic, self.servers.kafka.url, database, incremental)


async def poll(bench: Bench) -> None:
    """poll → Kafka, beside Kafka's own producer and what only reads the API."""
    with api(bench.records, bench.directory) as source, api(SEVERAL, bench.directory) as little:

        async def ours(contender: str, source: Api, incremental: str = ASCENDING) -> None:
            async with AsyncExitStack() as stack:
                place = await bench.product(stack, source, incremental=incremental)
                bench.results.add(contender, source.records, await place.poll())

        async def limit() -> None:
            async with bench.servers.topic() as topic:
                with bench.workplace() as directory:
                    usage = await peers.producer_perf(bench.servers.kafka.bootstrap, topic, directory)
                    bench.results.add(c.PRODUCER_PERF, peers.PERF_RECORDS, usage)

        async def airbyte() -> None:
            with bench.workplace() as directory:
                bench.results.add(c.AIRBYTE, source.records, await peers.airbyte(source, directory))

        async def floor() -> None:
            async with bench.servers.database() as database, bench.servers.topic() as topic:
                with bench.workplace() as directory:
                    brokers = bench.servers.kafka.bootstrap
                    process = peers.floor_poll(source, brokers, topic, database, directory)
                    bench.results.add(c.FLOOR_POLL, source.records, await process.wait(peers.TIMEOUT))

        for _ in range(bench.runs):
            await bench.attempt(c.PRODUCER_PERF, limit)
            await bench.attempt(c.FLOOR_POLL, floor)
            await bench.attempt(c.POLL, lambda: ours(c.POLL, source))
            await bench.attempt(c.AIRBYTE, airbyte)
            await bench.attempt(c.POLL_NOTHING, lambda: ours(c.POLL_NOTHING, little))
        await bench.attempt(c.POLL_EVERYTHING, lambda: ours(c.POLL_EVERYTHING, source, EVERYTHING))


async def consume(bench: Bench) -> None:
    """Kafka → Postgres from one topic that was filled before: fresh, replayed, and with duplicates here and there."""
    with api(bench.records, bench.directory) as source, api(SEVERAL, bench.directory) as little:
        async with AsyncExitStack() as stack:
            filled = await bench.product(stack, source)
            await filled.poll()

            async def fresh() -> None:
                async with AsyncExitStack() as stack:
                    place = await bench.product(stack, source, topic=filled.topic)
                    bench.results.add(c.CONSUME, source.records, await place.consume())
                    await _expect(place, source.records)
                    await query(_database(place), "CHECKPOINT")
                    bench.results.add(c.REPLAY, source.records, await place.consume("again"))
                    await _thin_out(_database(place))
                    bench.results.add(c.SOME_DUPLICATES, source.records, await place.consume("third"))
                    await _expect(place, source.records)

            async def floor() -> None:
                async with bench.servers.database() as database:
                    with bench.workplace() as directory:
                        brokers = bench.servers.kafka.bootstrap
                        process = peers.floor_consume(source, brokers, filled.topic, database, directory)
                        bench.results.add(c.FLOOR_CONSUME, source.records, await process.wait(peers.TIMEOUT))

            async def start() -> None:
                async with AsyncExitStack() as stack:
                    place = await bench.product(stack, little)
                    await place.poll()
                    bench.results.add(c.CONSUME_NOTHING, SEVERAL, await place.consume())

            async def debezium() -> None:
                async with bench.servers.database(template="template1") as database:
                    with bench.workplace() as directory:
                        brokers = bench.servers.kafka.bootstrap
                        rows, usage = await connect.sink(brokers, filled.topic, database, source.records, directory)
                        bench.results.add(c.CONNECT, rows, usage)

            for n in range(bench.runs):
                await bench.attempt(c.COPY, lambda: _copy(bench, source, c.COPY))
                await bench.attempt(c.FLOOR_CONSUME, floor)
                await bench.attempt(c.CONSUME, fresh)
                if n < CONNECT_RUNS:
                    await bench.attempt(c.CONNECT, debezium)
                await bench.attempt(c.CONSUME_NOTHING, start)


async def end_to_end(bench: Bench) -> None:
    """API → Kafka → Postgres, both processes from their start to the last row, beside dlt, Singer and COPY alone."""
    with api(bench.records, bench.directory) as source, api(SEVERAL, bench.directory) as little:

        async def ours(contender: str, source: Api) -> None:
            async with AsyncExitStack() as stack:
                place = await bench.product(stack, source)
                seconds, poller, consumer = await place.both()
                bench.results.add(contender, source.records, poller, consumer, wall=seconds)
                await _expect(place, source.records)

        async def dlt() -> None:
            async with bench.servers.database(template="template1") as database:
                with bench.workplace() as directory:
                    usage = await peers.dlt_postgres(source, database, directory)
                    bench.results.add(c.DLT_POSTGRES, source.records, usage)

        async def singer() -> None:
            async with bench.servers.database(template="template1") as database:
                with bench.workplace() as directory:
                    bench.results.add(c.SINGER, source.records, await peers.singer(source, database, directory))

        async def floor() -> None:
            async with bench.servers.database() as database, bench.servers.topic() as topic:
                with bench.workplace() as directory:
                    used = await peers.floor_both(source, bench.servers.kafka.bootstrap, topic, database, directory)
                    bench.results.add(c.FLOOR_END_TO_END, source.records, *used)

        for n in range(bench.runs):
            await bench.attempt(c.FLOOR_END_TO_END, floor)
            await bench.attempt(c.END_TO_END, lambda: ours(c.END_TO_END, source))
            await bench.attempt(c.BOTH_NOTHING, lambda: ours(c.BOTH_NOTHING, little))
            await bench.attempt(c.DLT_POSTGRES, dlt)
            await bench.attempt(c.COPY_BESIDE_ALL, lambda: _copy(bench, source, c.COPY_BESIDE_ALL))
            if n < SINGER_RUNS:
                await bench.attempt(c.SINGER, singer)


async def embedded(bench: Bench) -> None:
    """The same on one SQLite file, beside dlt into one DuckDB file."""
    with api(bench.records, bench.directory) as source:

        async def ours() -> None:
            with bench.workplace() as directory:
                place = Place(directory, source, "bench.events")
                await place.make_topic()
                seconds, poller, consumer = await place.both()
                bench.results.add(c.EMBEDDED, source.records, poller, consumer, wall=seconds)

        async def dlt() -> None:
            with bench.workplace() as directory:
                bench.results.add(c.DLT_DUCKDB, source.records, await peers.dlt_duckdb(source, directory))

        for _ in range(bench.runs):
            await bench.attempt(c.EMBEDDED, ours)
            await bench.attempt(c.DLT_DUCKDB, dlt)


async def memory(bench: Bench) -> None:
    """Peak memory must not grow with the number of records."""
    with api(bench.records, bench.directory) as small, api(bench.records * LARGER, bench.directory) as large:

        async def ours(polls: str, consumes: str, source: Api) -> None:
            async with AsyncExitStack() as stack:
                place = await bench.product(stack, source)
                bench.results.add(polls, source.records, await place.poll())
                bench.results.add(consumes, source.records, await place.consume())

        for _ in range(min(bench.runs, MEMORY_RUNS)):
            await bench.attempt(c.CONSUME_SMALL, lambda: ours(c.POLL_SMALL, c.CONSUME_SMALL, small))
            await bench.attempt(c.CONSUME_LARGE, lambda: ours(c.POLL_LARGE, c.CONSUME_LARGE, large))


async def slow(bench: Bench) -> None:
    """An API that takes its time: streams of one source side by side, up to its limits."""
    options = "-latency", str(SLOW_LATENCY)
    records = SLOW_PAGES * SLOW_PAGE
    with api(records, bench.directory, *options) as source, api(SEVERAL, bench.directory, *options) as little:

        async def ours(contender: str, source: Api, beside: int = 0) -> None:
            with bench.workplace() as directory:
                place = Place(directory, source, "bench.events", page=SLOW_PAGE, beside=beside)
                bench.results.add(contender, source.records * (1 + beside), await place.poll_all())

        for _ in range(bench.runs):
            await bench.attempt(c.SLOW_ONE, lambda: ours(c.SLOW_ONE, source))
            await bench.attempt(c.SLOW_EIGHT, lambda: ours(c.SLOW_EIGHT, source, 7))
            await bench.attempt(c.SLOW_NOTHING, lambda: ours(c.SLOW_NOTHING, little))


async def waiting(bench: Bench) -> None:
    """How long after a record is there for the asking its row is there."""
    for _ in range(bench.runs):
        async with AsyncExitStack() as stack:
            seconds = latency.WARM_UP + LATENCY_SECONDS
            total = int(LATENCY_RATE * seconds)
            source = stack.enter_context(api(total, bench.directory, "-rate", str(LATENCY_RATE)))
            place = await bench.product(stack, source)
            found = await latency.measure(place, LATENCY_RATE, seconds)
            bench.results.numbers[c.P50].append(found.p50)
            bench.results.numbers[c.P99].append(found.p99)
            bench.say(f"latency: p50 {found.p50:.0f} ms, p99 {found.p99:.0f} ms, {found.rows} rows")


GROUPS = {
    "end-to-end": end_to_end,
    "poll": poll,
    "consume": consume,
    "embedded": embedded,
    "memory": memory,
    "slow": slow,
    "latency": waiting,
    "jobs": queues.jobs,
}


async def _copy(bench: Bench, source: Api, contender: str) -> None:
    async with bench.servers.database() as database:
        with bench.workplace() as directory:
            bench.results.add(contender, source.records, await peers.copy(source, database, directory))


async def _thin_out(database: str) -> None:
    """Leave every thousandth row in place, so that every batch that is written again meets some."""
    await query(database, 'DELETE FROM ingest.events WHERE "offset" % 1000 <> 0')
    await query(database, "VACUUM FULL ingest.events")
    await query(database, "CHECKPOINT")


async def _expect(place: Place, rows: int) -> None:
    """Raises Failed when the store does not hold every record once."""
    [found] = await query(_database(place), "SELECT count(*), count(DISTINCT event_id) FROM ingest.events")
    if tuple(found) != (rows, rows):
        raise Failed(f"{found[0]} rows, {found[1]} eventIds, {rows} records")


def _database(place: Place) -> str:
    assert place.store_url is not None
    return place.store_url
