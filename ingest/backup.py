"""A copy of an SQLite file while it is in use: whole, of one moment, and looked through before it has its name.

`VACUUM INTO` reads one snapshot, and nobody waits for it. The WAL cannot be cut meanwhile: it grows by what is written.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ingest.errors import ConfigError
from ingest.sqlite import translated


class Copied(NamedTuple):
    source: Path
    target: Path
    bytes: int
    rows: int  # of all tables
    seconds: float


def copy(source: Path, target: Path) -> Copied:
    """Raises ConfigError where there is nothing to copy, the target is there already or cannot be written, or the copy
    is not sound; then nothing is left of it."""
    if not source.exists():
        raise ConfigError(f"there is no SQLite file {source} yet: nothing to copy")
    part = target.with_name(f"{target.name}.part")
    began = time.monotonic()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", (str(part),))
        rows = sum(_rows(part))
        shutil.copymode(source, part)
        _settle(part, target)
    except sqlite3.Error as exc:
        raise translated(source, exc) or ConfigError(f"cannot copy {source} to {part}: {exc}") from exc
    except FileExistsError as exc:
        raise ConfigError(f"{target} is there already: a backup overwrites nothing") from exc
    except OSError as exc:
        raise ConfigError(f"cannot write {part}: {exc}") from exc
    finally:
        part.unlink(missing_ok=True)
    return Copied(source, target, target.stat().st_size, rows, time.monotonic() - began)


def _rows(path: Path) -> Iterator[int]:
    """Of each table of a copy that is sound: every page and index is read."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        if said != ["ok"]:
            raise ConfigError(f"the copy of {path} is damaged, and so may be what it was copied from: {said[0]}")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (name,) in names.fetchall():
            yield connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]


def _settle(part: Path, target: Path) -> None:
    """On the disk, under its name; never over another file."""
    for path in (part, part.parent):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    os.link(part, target)
