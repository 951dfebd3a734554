"""What else does the same work, or bounds it: dlt, airbyte-cdk, Singer, Huey, Procrastinate, the floor written by hand,
COPY alone, Kafka's own producer-perf-test.

Each peer is installed by pip into an environment of its own in .cache/bench-venv, not into the project's, and is run
with the settings that were fastest for it. One that cannot be installed is Unavailable: reported, never made up.
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.measure import Failed, Process, Usage, run
from tests.bench.servers import Api, query
from tests.harness.brokers import jars
from tests.harness.installs import REPOSITORY

PROGRAMS = REPOSITORY / "tests" / "bench" / "peers"
ENVIRONMENTS = REPOSITORY / ".cache" / "bench-venv"
DLT = ("dlt[postgres,duckdb]", "pyarrow")
AIRBYTE = ("airbyte-cdk",)
HUEY = ("huey",)
PROCRASTINATE = ("procrastinate", "psycopg[binary,pool]")
SINGER = ("singer-sdk", "meltanolabs-target-postgres")
HERE = {"PYTHONPATH": str(REPOSITORY)}
TIMEOUT = 600.0  # seconds for one run
PERF_RECORDS = 1_000_000
PERF_BYTES = 400  # as a record of the fixture API


class Unavailable(Exception):
    """This peer cannot be run here; the message says why."""


def environment(name: str, packages: Sequence[str]) -> Path:
    """The bin directory of a virtual environment that has the packages; made when it is first asked for."""
    home = ENVIRONMENTS / name
    done = home / "installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        make = [sys.executable, "-m", "venv", str(home)]
        install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
        for command in (make, install):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise Unavailable(f"{' '.join(packages)} cannot be installed: {result.stderr.strip()[-300:]}")
        done.touch()
    return home / "bin"


def floor_poll(api: Api, brokers: str, topic: str, database: str, directory: Path) -> Process:
    return _floor(directory, "poll", api.url, brokers, topic, database)


def floor_consume(api: Api, brokers: str, topic: str, database: str, directory: Path) -> Process:
    """Ends when it has written all records."""
    return _floor(directory, "consume", brokers, topic, database, str(api.records))


def _floor(directory: Path, *arguments: str) -> Process:
    return Process([sys.executable, PROGRAMS / "floor.py", *arguments], env={}, cwd=directory)


async def floor_both(api: Api, brokers: str, topic: str, database: str, directory: Path) -> tuple[Usage, Usage]:
    """Both at once; the consumer ends with the last row."""
    consumer = floor_consume(api, brokers, topic, database, directory)
    poller = floor_poll(api, brokers, topic, database, directory)
    used = await asyncio.gather(poller.wait(TIMEOUT), consumer.wait(TIMEOUT))
    return used[0], used[1]


async def dlt_postgres(api: Api, database: str, directory: Path) -> Usage:
    return await _dlt(api, ("postgres", database), directory)


async def dlt_duckdb(api: Api, directory: Path) -> Usage:
    return await _dlt(api, ("duckdb", "events.duckdb"), directory)


async def _dlt(api: Api, target: Sequence[str], directory: Path) -> Usage:
    python = environment("dlt", DLT) / "python"
    usage = await run([python, PROGRAMS / "dlt_load.py", api.url, *target], cwd=directory)
    _check(_number("rows", usage), api.records, "dlt")
    return usage


async def airbyte(api: Api, directory: Path) -> Usage:
    python = environment("airbyte", AIRBYTE) / "python"
    usage = await run([python, PROGRAMS / "airbyte_read.py", api.url], cwd=directory)
    _check(usage.output.count('"type":"RECORD"'), api.records, "airbyte-cdk")
    return usage


async def singer(api: Api, database: str, directory: Path) -> Usage:
    programs = environment("singer", SINGER)
    parts = urlsplit(database)
    target = {
        "host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password,
        "database": parts.path[1:], "default_target_schema": "singer", "batch_size_rows": 10_000, "use_copy": True,
        "load_method": "upsert", "add_record_metadata": False, "activate_version": False,
    }  # fmt: skip
    (directory / "target.json").write_text(json.dumps(target))
    (directory / "tap.json").write_text("{}")
    tap = f"{programs}/python {PROGRAMS}/singer_tap.py --config tap.json 2>tap.log"
    pipe = f"set -o pipefail; {tap} | {programs}/target-postgres --config target.json"
    usage = await run(["bash", "-c", pipe], cwd=directory, env={"API": api.url})
    [row] = await query(database, "SELECT count(*) FROM singer.events")
    _check(row[0], api.records, "Singer")
    return usage._replace(peak=0.0)  # that of the shell


async def our_jobs(url: str, number: int, slots: int, directory: Path) -> Usage:
    """As the others below: its wall time is that of claiming and finishing."""
    usage = await run([sys.executable, "-m", "tests.bench.jobs", url, str(number), str(slots)], cwd=directory, env=HERE)
    return _of_jobs(usage, number, "the queue")


async def huey(number: int, directory: Path) -> Usage:
    python = environment("huey", HUEY) / "python"
    usage = await run([python, PROGRAMS / "huey_jobs.py", "huey.db", str(number)], cwd=directory)
    return _of_jobs(usage, number, "Huey")


async def procrastinate(database: str, number: int, directory: Path) -> Usage:
    python = environment("procrastinate", PROCRASTINATE) / "python"
    usage = await run([python, PROGRAMS / "procrastinate_jobs.py", database, str(number)], cwd=directory)
    return _of_jobs(usage, number, "Procrastinate")


def _of_jobs(usage: Usage, number: int, who: str) -> Usage:
    _check(_number("jobs", usage), number, who)
    return usage._replace(wall=_number("seconds", usage))


async def copy(api: Api, database: str, directory: Path) -> Usage:
    """Its wall time is that of the COPYs alone."""
    usage = await run([sys.executable, PROGRAMS / "copy_rows.py", api.url, database, str(api.records)], cwd=directory)
    return usage._replace(wall=_number("seconds", usage))


async def producer_perf(bootstrap: str, topic: str, directory: Path) -> Usage:
    """Its wall time is what Kafka's program says of a million records: its own start is left out."""
    settings = ["acks=all", "enable.idempotence=true", "linger.ms=5", "batch.size=262144"]
    size = ["--num-records", str(PERF_RECORDS), "--record-size", str(PERF_BYTES), "--throughput", "-1"]
    program = ["java", "-cp", f"{jars()}/*", "org.apache.kafka.tools.ProducerPerformance"]
    props = ["--producer-props", f"bootstrap.servers={bootstrap}", *settings]
    usage = await run([*program, "--topic", topic, *size, *props], cwd=directory)
    found = re.findall(rf"{PERF_RECORDS} records sent, ([\d.]+) records/sec", usage.output)
    if not found:
        raise Failed(f"producer-perf-test said: {usage.output[-500:]}")
    return usage._replace(wall=PERF_RECORDS / float(found[-1]))


def _number(name: str, usage: Usage) -> float:
    found = re.search(rf"^{name} ([\d.]+)$", usage.output, re.MULTILINE)
    if found is None:
        raise Failed(f"a peer did not say `{name}`: {usage.output[-500:]}")
    return float(found[1])


def _check(rows: float, wanted: int, who: str) -> None:
    if rows != wanted:
        raise Failed(f"{who} brought {rows:.0f} of {wanted} records")
