"""A backup is whole and of one moment, whatever is written meanwhile, and overwrites nothing."""

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ingest import backup
from ingest.cli import app
from ingest.errors import ConfigError
from ingest.sqlite import open_database
from migrations.runner import migrate

PAIRS = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)"


def numbered(path: Path, rows: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE a (n); CREATE TABLE b (n);")
        connection.executemany("INSERT INTO a VALUES (?)", ((n,) for n in range(rows)))
        connection.executemany("INSERT INTO b VALUES (?)", ((n,) for n in range(rows)))


def test_a_copy_made_while_two_tables_are_written_together_has_as_much_in_one_as_in_the_other(tmp_path: Path) -> None:
    path = tmp_path / "ingest.db"
    numbered(path, 50_000)
    began, stop = threading.Event(), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            while not stop.is_set():
                connection.executescript("BEGIN IMMEDIATE; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); COMMIT;")
                began.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        began.wait()
        copied = [backup.copy(path, tmp_path / f"copy{n}.db") for n in range(3)]
    finally:
        stop.set()
        writer.join()
    for one in copied:
        with closing(sqlite3.connect(one.target)) as connection:
            first, second = connection.execute(PAIRS).fetchone()
        assert first == second > 50_000 and one.rows == first + second
        assert one.bytes == one.target.stat().st_size
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy0.db", "copy1.db", "copy2.db"]


def test_nothing_is_overwritten_and_nothing_is_left_of_a_copy_that_failed(tmp_path: Path) -> None:
    path, target = tmp_path / "ingest.db", tmp_path / "copy.db"
    numbered(path, 10)
    target.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        backup.copy(path, target)
    assert target.read_text() == "mine"
    with pytest.raises(ConfigError, match="no SQLite file"):
        backup.copy(tmp_path / "other.db", tmp_path / "copy2.db")
    with path.open("r+b") as file:  # a page of a table, in the middle
        file.seek(4096 * 1)
        file.write(b"\xff" * 4096)
    with pytest.raises(ConfigError, match="damaged"):
        backup.copy(path, tmp_path / "copy2.db")
    assert [one.name for one in tmp_path.glob("copy*")] == ["copy.db"]


async def make(path: Path) -> None:
    await migrate(f"sqlite:///{path}")
    async with open_database(path):
        pass


def test_the_embedded_file_is_copied_once_whatever_it_is_used_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INGEST_CONFIG", "INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ingest.yaml").write_text("version: 1\n")
    asyncio.run(make(tmp_path / ".ingest" / "ingest.db"))
    result = CliRunner().invoke(app, ["backup", "copies", "--json"])
    assert result.exit_code == 0, result.output
    [copied] = json.loads(result.stdout)
    assert Path(copied["target"]).parent == Path("copies") and copied["rows"] > 0
