"""What is to be done again and again, or once and later: when it is due, and who does it.

`enqueue` puts a job into the queue, `Context` is what a task's function gets; both are for everyone's Python.
"""

from ingest.jobs.context import Context
from ingest.jobs.entry import enqueue, enqueue_async

__all__ = ["Context", "enqueue", "enqueue_async"]
