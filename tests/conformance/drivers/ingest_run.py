"""The `ingest` command, forked: `{"argv": [...]}`."""

import sys
from importlib import import_module

from forked import Job, serve
from typer.main import get_command

from ingest.cli import app, main

LATE = (  # what a run would import by itself, each time anew
    "anyio._backends._asyncio", "checkpoints.sqlite", "consumers.consumer", "consumers.store.sqlite", "httpcore",
    "ingest.eventlog.sqlite", "ingest.sources.http", "ingest.sources.transport",
)  # fmt: skip


def work(job: Job) -> int:
    sys.argv = ["ingest", *job["argv"]]
    main()


for name in LATE:
    import_module(name)
get_command(app)
serve(work)
