"""A process that has imported a tool, and forks for every job: each run starts clean, and none pays for the imports.

One line of JSON a job on standard input, `{"directory", "limit", …}`; on standard output first `{"pid"}`, then
`{"code", "hung"}`. What the job prints goes to the files `out` and `err` of its directory.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

LOOK_EVERY = 0.005  # seconds
WORTH_TELLING = 0.3  # seconds of a wait; what is shorter is a tool's own polling
NOT_OFFERED = 64  # the exit code of a job that asks for what the tool has not
NAP = 0.01  # seconds that a wait really takes, where waits are only written down

Job = dict[str, Any]


class NotOffered(Exception):
    """The tool has no option for what is asked; it would have to be programmed."""


def serve(work: Callable[[Job], int]) -> None:
    """Until standard input ends. `work` runs in the job's directory and gives the exit code."""
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _work(work, job)
        _say({"pid": child})
        _say(_waited_for(child, job["limit"]))


def only_write_down_waits() -> None:
    """From now on `time.sleep` returns at once; what was slept is in the file `waits` of the job's directory.

    To be called before the tool is imported. Where REAL_WAITS is set for a job, waits are real."""
    real = time.sleep

    def sleep(seconds: float) -> None:
        if seconds >= WORTH_TELLING:
            with open("waits", "a") as file:
                file.write(f"{seconds}\n")
        real(seconds if "REAL_WAITS" in os.environ else min(seconds, NAP))

    time.sleep = sleep


def member(text: str, name: str) -> str:
    """The JSON of the first member of this name: numbers keep their digits."""
    start = text.index(f'"{name}":') + len(name) + 3
    start += len(text[start:]) - len(text[start:].lstrip())
    return text[start : json.JSONDecoder().raw_decode(text, start)[1]]


@contextmanager
def rows(whole: bool) -> Iterator[TextIO]:
    """The file `rows`, to add to. `whole`: what is written takes the place of all before, if no error comes."""
    name = "rows.new" if whole else "rows"
    with open(name, "w" if whole else "a") as file:
        yield file
    os.replace(name, "rows")


def _work(work: Callable[[Job], int], job: Job) -> None:
    code = 70
    try:
        os.chdir(job["directory"])
        os.setsid()
        os.environ.update(job.get("environment", {}))
        if "TZ" in job.get("environment", {}):
            time.tzset()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        code = work(job)
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    except NotOffered:
        code = NOT_OFFERED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited_for(child: int, limit: float) -> dict[str, Any]:
    deadline = time.monotonic() + limit
    hung = False
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if not hung and time.monotonic() > deadline:
            hung = True
            os.kill(child, signal.SIGKILL)
        select_nothing(LOOK_EVERY)
    return {"code": os.waitstatus_to_exitcode(ended[1]), "hung": hung}


def select_nothing(seconds: float) -> None:
    signal.sigtimedwait([signal.SIGCHLD], seconds)


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
