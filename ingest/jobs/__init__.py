"""What is to be done again and again, or once and later: when it is due, and who does it.

For everyone's Python: `enqueue` puts a job into the queue, `Context` is what a task's function gets, and `Again` what
it raises to be called later without an attempt burned. `ingest.errors` has the other errors that decide about a job.
"""

from ingest.jobs.context import Context
from ingest.jobs.entry import enqueue, enqueue_async
from ingest.jobs.handler import Again

__all__ = ["Again", "Context", "enqueue", "enqueue_async"]
