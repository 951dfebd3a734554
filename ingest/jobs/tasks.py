"""Handlers of the tasks that the configuration names."""

import asyncio
import inspect
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from checkpoints.jobs import Job
from ingest.config.loader import Loaded
from ingest.config.problems import ConfigErrors, Problem
from ingest.config.references import resolve
from ingest.config.tasks import Task
from ingest.jobs import calls, entry
from ingest.jobs.context import context
from ingest.jobs.handler import Handler, Progress, Work
from ingest.jobs.kinds import task_kind
from ingest.jobs.threads import in_thread
from ingest.redaction import Redactor


def handlers(names: Collection[str], loaded: Loaded, redactor: Redactor, inside: entry.Inside) -> Mapping[str, Handler]:
    """Of these tasks, by kind. Raises ConfigErrors with everything that `call` names and that is not there."""
    ensure_found(loaded, names)
    tasks = {name: loaded.config.tasks[name] for name in names}
    return {
        task_kind(name): Handler(_work(name, task, loaded, redactor, inside), task.timeout)
        for name, task in tasks.items()
    }


def ensure_found(loaded: Loaded, names: Collection[str]) -> None:
    """Imports what these tasks call. Raises ConfigErrors, with the place of each."""
    if problems := list(_problems(loaded, names)):
        raise ConfigErrors(problems)


def _problems(loaded: Loaded, names: Collection[str]) -> Iterator[Problem]:
    for name in names:
        try:
            calls.find(loaded.config.tasks[name].call)
        except calls.NotFound as exc:
            path = f"tasks.{name}.call"
            yield Problem(loaded.file, *loaded.position(path), path, str(exc))


def _work(name: str, task: Task, loaded: Loaded, redactor: Redactor, inside: entry.Inside) -> Work:
    function: Any = calls.find(task.call)
    on_the_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def work(job: Job, progress: Progress, stop: asyncio.Event) -> None:
        args = resolve(task, redactor, loaded.within(f"tasks.{name}")).args
        call = partial(function, context(name, args, job, progress, stop))
        entry.enter(inside)  # for as long as this job's own task lasts
        result = call() if on_the_loop else await in_thread(call, f"task {name}")
        if inspect.isawaitable(result):
            await result

    return work
