"""The `ingest` command. Each verb is short: load the configuration, build, run, print."""

import errno
import io
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import typer

from ingest.imports import lightly

with lightly():
    from ingest.cli import (
        backfill,
        backup,
        checkpoints,
        consume,
        discover,
        doctor,
        events,
        explain,
        jobs,
        migrate,
        preview,
        run,
        schedules,
        setup,
        source,
        topics,
        verify,
        worker,
        workers,
    )
    from ingest.cli.context import REDACTOR
    from ingest.errors import ConfigError, IngestError, Transient
    from ingest.signals import Interrupted

DONE, FAILED, CONFIGURATION, UNAVAILABLE, CUT_SHORT = 0, 1, 2, 3, 130
NO_BUG = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)  # disk or quota full, no more files

app = typer.Typer(
    name="ingest",
    help="Pulls events out of HTTP APIs into a log, and out of the log into a store. Loses none, stores none twice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
VERBS: tuple[Callable[..., None], ...] = (
    setup.init, discover.discover, setup.check, explain.explain, preview.preview, run.run, consume.consume,
    worker.worker, backfill.backfill, verify.verify, events.events, workers.workers, doctor.doctor, backup.backup,
    migrate.migrate, setup.schema, setup.version,
)  # fmt: skip
for verb in VERBS:
    app.command()(verb)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(topics.app, name="topics")
app.add_typer(jobs.app, name="jobs")
app.add_typer(schedules.app, name="schedules")
app.add_typer(source.app, name="source")


def main() -> NoReturn:
    """0 done · 1 failed or incomplete · 2 configuration · 3 temporarily unavailable · 130 cut by a second signal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no letter for what an API sent
    try:
        app(standalone_mode=True)
    except BaseException as exc:
        sys.exit(_exit_code(_cause(exc)))
    sys.exit(DONE)


def _cause(exc: BaseException) -> BaseException:
    """The first real exception of a group."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def _exit_code(exc: BaseException) -> int:
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else DONE if exc.code is None else FAILED
    if isinstance(exc, (KeyboardInterrupt, Interrupted)):
        print("interrupted: what was saved stays good", file=sys.stderr)
        return CUT_SHORT if "grace" not in str(exc) else FAILED
    if isinstance(exc, BrokenPipeError):
        return DONE
    if isinstance(exc, IngestError):
        print(REDACTOR.scrub(str(exc)), file=sys.stderr)
        return CONFIGURATION if isinstance(exc, ConfigError) else UNAVAILABLE if isinstance(exc, Transient) else FAILED
    if isinstance(exc, OSError) and exc.errno in NO_BUG:
        print(REDACTOR.scrub(f"the system refuses: {exc}"), file=sys.stderr)
        return FAILED
    print(REDACTOR.scrub("".join(traceback.format_exception(exc))), file=sys.stderr)
    print("this is a bug in ingest; nothing that was saved is lost", file=sys.stderr)
    return FAILED
