"""The tools that are compared: this one, and its peers, each driven in the same way.

A tool is a process that has imported everything and forks for each run (drivers/forked.py), so a run may hang or be
killed. Peers are installed by pip into .cache/conformance-venv, one environment each.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from checkpoints.sqlite import SqliteLeases
from ingest.event import decode
from ingest.eventlog.sqlite import SqliteLog
from ingest.sqlite import open_database
from tests.conformance import configuration
from tests.conformance.case import Case
from tests.conformance.verdict import Ran

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = ROOT / "tests" / "conformance" / "drivers"
ENVIRONMENTS = ROOT / ".cache" / "conformance-venv"
NOT_OFFERED = 64  # the exit code of a driver that is asked for what its tool has not
LIMIT = 25.0  # seconds that a run may take


class Rows(NamedTuple):
    rows: Sequence[Mapping[str, str]]
    repeated: int
    dead_letters: int = 0
    deleted: Sequence[str] = ()


class Tool(Protocol):
    name: str
    strict: bool

    async def run(self, case: Case, url: str, directory: Path, argv: Sequence[str] = ()) -> Ran:
        """One run; `argv`: another verb of this project."""

    async def rows(self, case: Case, directory: Path) -> Rows: ...
    def slept(self, directory: Path) -> float:
        """Seconds that it says it waited in its last run."""

    def kill(self) -> None:
        """The run under way."""


class Forks:
    """A driver's process; one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._running: int | None = None

    async def do(self, directory: Path, limit: float = LIMIT, **job: Any) -> tuple[int, bool]:
        """The exit code, and whether it had to be ended."""
        assert self._process.stdin is not None
        line = json.dumps({"directory": str(directory), "limit": limit, **job})
        self._process.stdin.write(line.encode() + b"\n")
        self._running = (await self._told())["pid"]
        ended = await self._told()
        self._running = None
        return ended["code"], ended["hung"]

    def kill(self) -> None:
        if self._running is not None:
            os.kill(self._running, signal.SIGKILL)

    async def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the driver has ended")
        told: dict[str, Any] = json.loads(line)
        return told


@asynccontextmanager
async def forks(python: Path, driver: str) -> AsyncIterator[Forks]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")}
    process = await asyncio.create_subprocess_exec(
        str(python), str(DRIVERS / driver),
        cwd=ROOT, env={**kept, "PYTHONPATH": str(ROOT)} if driver == "ingest_run.py" else kept,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Forks(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Product:
    """`ingest run --once` again and again. Rows are what the log has, or the store after `ingest consume --once`."""

    name = "ingest"
    strict = True

    def __init__(self, running: Forks) -> None:
        self._forks = running
        self.kill: Callable[[], None] = running.kill

    async def run(self, case: Case, url: str, directory: Path, argv: Sequence[str] = ()) -> Ran:
        (directory / "ingest.yaml").write_text(json.dumps(configuration.of(case, url)))
        verb = argv or ("run", "--once", "--json")
        code, hung = await self._do(directory, *verb, environment=case.environment)
        out, err = (directory / "out").read_text(), (directory / "err").read_text()
        if not argv:
            with (directory / "reports").open("a") as file:
                file.write(json.dumps(json.loads(out) if out else []) + "\n")
        return Ran(code == 0, f"exit {code}: {out}{err}", hung, killed=code == -signal.SIGKILL)

    async def rows(self, case: Case, directory: Path) -> Rows:
        payloads, deleted = await (self._store if case.stored else _log)(directory)
        found = [json.loads(payload, parse_float=Exact, parse_int=Exact) for payload in payloads]
        reports = [report for line in _lines(directory / "reports") for report in json.loads(line)]
        published = sum(report["events"] for report in reports if report["stream"] == "events")
        letters = sum(report["dead_letters"] for report in reports)
        repeated = published - len(set(payloads)) - len(deleted)
        return Rows([_fields(row) for row in found], max(0, repeated), letters, deleted)

    async def _store(self, directory: Path) -> tuple[list[bytes], list[str]]:
        """The payloads after `consume`."""
        for verb in (("consume", "store", "--once"), ("events", "--format", "jsonl")):
            code, _ = await self._do(directory, *verb)
            if code:
                raise RuntimeError((directory / "err").read_text())
        found = [line.partition('"payload":')[2][:-1] for line in _lines(directory / "out")]
        return [payload.encode() for payload in found], []

    def slept(self, directory: Path) -> float:
        return 0.0

    async def _do(self, directory: Path, *argv: str, environment: Mapping[str, str] | None = None) -> tuple[int, bool]:
        return await self._forks.do(directory, argv=argv, environment={**configuration.SECRETS, **(environment or {})})


class Peer:
    """Another tool; its rows are what its driver wrote into the file `rows`."""

    strict = False

    def __init__(self, name: str, running: Forks) -> None:
        self.name, self._forks = name, running
        self.kill: Callable[[], None] = running.kill

    async def run(self, case: Case, url: str, directory: Path, argv: Sequence[str] = ()) -> Ran:
        assert not argv, "a verb of this project in a case that peers play"
        (directory / "waits").unlink(missing_ok=True)
        ask = asdict(case.ask)
        for path, whole in (("token_path", "token_url"), ("login_path", "login")):
            if path in ask["auth"]:
                ask["auth"][whole] = url + ask["auth"][path]
        code, hung = await self._forks.do(directory, url=url, ask=ask, environment=dict(case.environment))
        if code == NOT_OFFERED:
            return Ran(False, "not offered")
        said = (directory / "err").read_text(errors="replace")
        if code not in (0, -signal.SIGKILL):
            said = _cause(said)
        with (directory / "ever").open("a") as file:
            file.writelines(f"{line}\n" for line in _lines(directory / "rows"))
        return Ran(code == 0, said, hung, killed=code == -signal.SIGKILL and not hung)

    async def rows(self, case: Case, directory: Path) -> Rows:
        if case.ask.deletes:
            ever, now = (_by_id(directory / name) for name in ("ever", "rows"))
            return Rows(list(ever.values()), 0, deleted=[name for name in ever if name not in now])
        found = [json.loads(line, parse_float=Exact, parse_int=Exact) for line in _lines(directory / "rows")]
        rows = [_fields(row) for row in found]
        distinct = {json.dumps(row, sort_keys=True) for row in rows}
        return Rows(rows, len(rows) - len(distinct))

    def slept(self, directory: Path) -> float:
        return sum(map(float, _lines(directory / "waits")))


async def _log(directory: Path) -> tuple[list[bytes], list[str]]:
    """The payloads of the stream's topic, and the ids that it says are gone."""
    path = directory / ".ingest" / "ingest.db"
    if not path.exists():
        return [], []
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(path))
        log = SqliteLog(database, SqliteLeases(database), "conformance")
        reader = await stack.enter_async_context(log.reader())
        events = [decode(record) async for record in reader.read("api.events")]
    gone = [event for event in events if event.type.endswith(".deleted")]
    return [event.payload for event in events if event not in gone], [event.subject for event in gone]


class Exact(float):
    """A number with its own digits."""

    def __new__(cls, text: str) -> "Exact":
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class Distribution(NamedTuple):
    """A peer: what is installed, and its driver."""

    name: str
    packages: Sequence[str]
    driver: str

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.name / "bin" / "python"


PEERS = (
    Distribution("dlt", ("dlt[duckdb]",), "dlt_read.py"),
    Distribution("airbyte-cdk", ("airbyte-cdk",), "airbyte_read.py"),
    Distribution("singer-sdk", ("singer-sdk",), "singer_read.py"),
)


def installed(peer: Distribution) -> str:
    """Its version; it is installed when it is first asked for."""
    home = ENVIRONMENTS / peer.name
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([peer.python, "-m", "pip", "install", "--quiet", *peer.packages], check=True)
        (home / "installed").touch()
    ask = f"import importlib.metadata as m; print(m.version({peer.name!r}))"
    return subprocess.run([peer.python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def _by_id(path: Path) -> dict[str, dict[str, str]]:
    rows = [_fields(json.loads(line)) for line in _lines(path)]
    return {json.loads(row["id"]): row for row in rows}


def _fields(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: value.text if isinstance(value, Exact) else json.dumps(value) for name, value in row.items()}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _cause(printed: str) -> str:
    """The name of the error that others were raised from: the first in a traceback."""
    found = re.search(r"\b([A-Z]\w*(?:Error|Exception|Timeout))\b", printed)
    return found[1] if found else printed[-300:]
