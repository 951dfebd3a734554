"""One SQLite file, opened by many at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from ingest.sqlite import open_database

MANY = 12


def test_many_who_open_a_new_file_at_the_same_moment_all_get_it(tmp_path: Path) -> None:
    # SQLite does not wait for another who switches the file to WAL, whatever the timeout: it says "locked" at once.
    for attempt in range(60):
        path, ready = tmp_path / f"{attempt}.db", Barrier(MANY)

        async def opened(path: Path = path, ready: Barrier = ready) -> str:
            ready.wait()
            async with open_database(path) as database:
                return await database.read(lambda c: str(c.execute("PRAGMA journal_mode").fetchone()[0]))

        with ThreadPoolExecutor(MANY) as threads:
            assert {*threads.map(lambda _: asyncio.run(opened()), range(MANY))} == {"wal"}
