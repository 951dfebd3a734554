"""The SQLite library, the file, its WAL, and the room it has."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ingest.doctor import Finding, act, good, note
from ingest.sqlite import WAL_LIMIT, Database, wal_bytes

FIXED = ((3, 51, 3), (3, 50, 7), (3, 44, 6))  # sqlite.org/wal.html#walresetbug; each for its own line of versions
FIRST_AFFECTED = (3, 7, 0)
LONG_WAL = 4 * WAL_LIMIT  # bytes
LITTLE = 500_000_000  # bytes of free space
MB = 1_000_000


def library(version: tuple[int, int, int]) -> Finding:
    """The bug: two connections that checkpoint in the same moment may lose what was committed."""
    shown = ".".join(map(str, version))
    if has_reset_bug(version):
        said = f"SQLite {shown} has the WAL-reset bug, fixed in 3.51.3, 3.50.7 and 3.44.6"
        todo = "`ingest` lets one process checkpoint, which keeps clear of it: let no other program write the file"
        return note("sqlite", said, todo)
    return good("sqlite", f"SQLite {shown}")


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    fixed_in = next((fixed for fixed in FIXED if fixed[:2] == version[:2]), FIXED[0])
    return FIRST_AFFECTED <= version < fixed_in


async def examine(database: Database) -> list[Finding]:
    about = f"file {database.path}"
    mode, pages, free, size = await database.read(_pragmas)
    found = [good(about, f"{pages * size / MB:,.1f} MB, {free * size / MB:,.1f} MB of them free")]
    if mode != "wal":
        said = f"journal_mode is {mode}, not wal: on this file system there is no shared memory"
        found.append(act(about, said, "keep the file on a local disk"))
    return [*found, *_wal(about, database.path), *_room(about, database.path)]


def _pragmas(connection: sqlite3.Connection) -> tuple[str, int, int, int]:
    names = ("journal_mode", "page_count", "freelist_count", "page_size")
    mode, pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return mode, pages, free, size


def _wal(about: str, path: Path) -> Iterator[Finding]:
    size = wal_bytes(path)
    if size > LONG_WAL:
        said = f"its WAL has {size / MB:,.0f} MB: someone reads the file all the time, so that it cannot be cut"
        yield act(about, said, f"find who has it open (`fuser {path}-wal`), and end what reads for ever")
    elif size > WAL_LIMIT:
        yield note(about, f"its WAL has {size / MB:,.0f} MB, and is cut when nobody reads for a moment")


def _room(about: str, path: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(path.parent).free
    if free < LITTLE:
        yield act(about, f"{free / MB:,.0f} MB are free on its disk", "make room: when it is full everything waits")
