"""Tasks: the function that a configuration names, what it is called with, and what is wrong with its name."""

import asyncio
import math
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoints.jobs import Job
from ingest.cli.working import select
from ingest.config.loader import parse
from ingest.config.problems import ConfigErrors
from ingest.errors import ConfigError
from ingest.jobs import calls, entry
from ingest.jobs.context import context
from ingest.jobs.outcomes import ended
from ingest.jobs.tasks import ensure_found, handlers
from ingest.jobs.threads import in_thread
from ingest.redaction import Redactor

WORK = """
import asyncio
LIMIT = 5
def send(context): ...
async def fetch(context): ...
def two(context, other): ...
def every(context): yield 1
class Group:
    @staticmethod
    def send(context): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with modules in it."""
    (tmp_path / "daily_work.py").write_text(WORK)
    (tmp_path / "broken_work.py").write_text("import daily_work\n1 / 0\n")
    (tmp_path / "hungry_work.py").write_text("import no_such_thing\n")
    (tmp_path / "json.py").write_text("loads = None\n")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize("call", ["daily_work:send", "daily_work:fetch", "daily_work:Group.send", "json:loads"])
def test_a_function_is_found_in_the_working_directory_behind_everything_that_is_installed(
    folder: Path, call: str
) -> None:
    assert callable(calls.find(call))
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("dayly_work:send", "there is no module `dayly_work`, neither installed nor in {}; did you mean `daily_work`?"),
        ("daily_work.more:send", "there is no module `daily_work.more`, neither installed nor in {}"),
        ("daily_work:sned", "`daily_work` has no `sned`; did you mean `send`?"),
        ("daily_work:LIMIT", "`daily_work:LIMIT` is no function, but int"),
        ("daily_work:every", "`daily_work:every` is a generator: it would not run"),
        (
            "daily_work:two",
            "`daily_work:two` must take one argument, the context: missing a required argument: 'other'",
        ),
        ("broken_work:send", "`broken_work` cannot be imported: ZeroDivisionError: division by zero"),
        ("hungry_work:send", "`hungry_work` cannot be imported: it imports `no_such_thing`, which is not installed"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_with_its_place(folder: Path, call: str, message: str) -> None:
    loaded = parse(f"version: 1\ntasks:\n  one: {{call: daily_work:send}}\n  two: {{call: {call}}}\n")
    with pytest.raises(ConfigErrors) as found:
        ensure_found(loaded, loaded.config.tasks)
    assert str(found.value) == "ingest.yaml:4:15: " + message.format(folder)


def test_a_context_has_what_the_tick_stands_for_however_late_it_is() -> None:
    noon = datetime(2026, 3, 29, 12, tzinfo=UTC)
    tick = noon.timestamp()
    job = Job(9, 2, "task:a", "a", "tasks", b'{"b":3}', 2, 5, tick + 60, tick + 99, "task:a", tick, tick - 3600)
    stop = asyncio.Event()
    found = context("a", {"a": 1, "b": 2}, job, print, stop)
    assert (found.task, found.payload, found.timestamp, found.window) == (
        "a", {"a": 1, "b": 3}, noon, (noon - timedelta(hours=1), noon),
    )  # fmt: skip
    assert (found.retries, found.attempts, found.job, found.stopping) == (1, 5, 9, False)
    stop.set()
    assert found.stopping
    without = context("a", {}, msgspec.structs.replace(job, tick_at=None, tick_from=None), print, stop)
    assert (without.timestamp, without.window) == (noon + timedelta(minutes=1), None)
    with pytest.raises(ConfigError, match=r"an object, not \[1\]"):
        context("a", {}, msgspec.structs.replace(job, payload=b"[1]"), print, stop)


async def test_a_function_in_a_thread_returns_and_raises_and_its_end_is_nobody_s_when_nobody_waits() -> None:
    def fails() -> None:
        raise StopIteration(5)

    def leaves() -> None:
        raise SystemExit(3)

    assert await in_thread(lambda: threading.current_thread().name, "task a") == "task a"
    with pytest.raises(RuntimeError, match="StopIteration: 5"):
        await in_thread(fails, "b")
    code = 0
    try:
        await in_thread(leaves, "c")
    except SystemExit as exc:
        code = int(str(exc.code))
    assert code == 3
    go, gone = threading.Event(), threading.Event()

    def waits() -> None:
        go.wait()
        gone.set()

    waiting = asyncio.ensure_future(in_thread(waits, "d"))
    await asyncio.sleep(0)
    waiting.cancel()
    go.set()
    assert await asyncio.to_thread(gone.wait, 30)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_enqueue_says_what_it_does_not_take() -> None:
    with pytest.raises(RuntimeError, match=r"await enqueue_async"):
        entry.enqueue("task:a")
    with pytest.raises(ConfigError, match="has no time zone"):
        entry._seconds(datetime(2026, 1, 1))
    east = timezone(timedelta(hours=3))
    assert entry._seconds(datetime(1970, 1, 1, 3, 0, 1, tzinfo=east)) == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run_at": math.nan}, "run_at=nan: write a time from 1970 to the year 9998"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at=253402300800.0: write a time"),
        ({"run_at": "tomorrow"}, "run_at='tomorrow': write a time"),
        ({"priority": 1.5}, "priority=1.5: write a whole number"),
        ({"priority": 2**31}, "priority=2147483648: write a whole number"),
        ({"attempts": 0}, "attempts=0: write a whole number from 1"),
        ({"dedupe_for": math.inf}, "dedupe_for=inf: write seconds"),
        ({"dedupe_key": "half \ud800"}, "characters that no database takes"),
        ({"dedupe_key": "a\0"}, "characters that no database takes"),
        ({"dedupe_key": "k" * 1_001}, "has more than 1,000 bytes"),
        ({"dedupe_key": 5}, "dedupe_key=5 is no text"),
        ({"queue": ""}, "queue='' is no text"),
        ({"payload": [1]}, "the payload is an object, not list"),
        ({"payload": {"a": "\ud800"}}, "the payload is no JSON"),
        ({"payload": {"a": object()}}, "the payload is no JSON"),
    ],
)
async def test_a_job_that_not_every_database_could_keep_is_refused(
    folder: Path, given: dict[str, Any], message: str
) -> None:
    """One row that cannot be read again would stand in the way of every list."""
    (folder / "ingest.yaml").write_text("version: 1\ntasks: {a: {call: 'daily_work:send'}}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        await entry.enqueue_async("task:a", **given)


def test_a_worker_takes_the_kinds_and_sources_that_are_named_and_no_others() -> None:
    config = parse("version: 1\ntasks: {report: {call: 'work:report'}, tidy: {call: 'work:tidy'}}").config
    assert select(config, [], []) == (["task:report", "task:tidy"], ["report", "tidy"])
    assert select(config, ["task"], ["tidy"]) == (["task:report", "task:tidy"], ["tidy"])
    with pytest.raises(ConfigError, match="no jobs of kind `task:reprot`, did you mean `task:report`"):
        select(config, ["task:reprot"], [])
    with pytest.raises(ConfigError, match="no source or task `tiddy`, did you mean `tidy`"):
        select(config, [], ["tiddy"])
    with pytest.raises(ConfigError, match="nothing to do"):
        select(parse("version: 1").config, [], [])


async def test_args_are_resolved_when_the_task_runs_and_its_errors_do_not_show_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "careless_work.py").write_text("def send(context): raise LookupError(repr(dict(context.payload)))\n")
    text = 'version: 1\ntasks: {one: {call: "careless_work:send", args: {token: "${env:CARELESS}", n: 1}}}'
    redactor = Redactor()
    inside = entry.Inside(object(), parse(text).config, asyncio.get_running_loop())  # type: ignore[arg-type]
    work = handlers(["one"], parse(text), redactor, inside)["task:one"].work
    job = Job(9, 2, "task:one", "one", "tasks", b'{"n":2}', 1, 5, 0.0, 0.0)
    with pytest.raises(ConfigError, match=r"ingest.yaml:2:.*CARELESS"):
        await work(job, print, asyncio.Event())
    monkeypatch.setenv("CARELESS", "s3cr3t-token")
    with pytest.raises(LookupError) as raised:
        await work(job, print, asyncio.Event())
    assert str(raised.value) == "{'token': 's3cr3t-token', 'n': 2}"
    error = ended(job, raised.value, redactor.scrub).error
    assert error is not None and "s3cr3t" not in error and "{'token': '***', 'n': 2}" in error
