"""The kinds of jobs."""

from checkpoints.jobs import NewJob

SYNC = "sync"
TASK = "task:"  # and its name

SYNC_QUEUE, TASK_QUEUE = "sync", "tasks"


def task_kind(name: str) -> str:
    return f"{TASK}{name}"


def task_named(kind: str) -> str | None:
    """The task that jobs of this kind are for."""
    return kind.removeprefix(TASK) if kind.startswith(TASK) else None


def task_job(name: str, attempts: int) -> NewJob:
    """One call of a task; its `args` are read when it runs."""
    return NewJob(task_kind(name), name, queue=TASK_QUEUE, max_attempts=attempts)
