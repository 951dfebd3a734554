"""Two tasks: one that runs in a thread, and one that is async. Their results are files in `out`."""

import asyncio
import json
from pathlib import Path

from ingest.jobs import Context, enqueue

OUT = Path("out")


def write(context: Context) -> None:
    """A report for each tick. It may be called twice for one, after a crash: then it writes the same file again."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"report-{context.timestamp:%Y%m%dT%H%M%S}-{context.payload['to']}.json"
    path.write_text(json.dumps({"to": context.payload["to"], "attempt": context.retries + 1}))
    context.progress({"written": path.name})
    enqueue("task:tidy", {"keep": 10}, dedupe_key="tidy")  # one at a time is enough


async def tidy(context: Context) -> None:
    reports = await asyncio.to_thread(lambda: sorted(OUT.glob("report-*.json")))
    for old in reports[: max(0, len(reports) - context.payload.get("keep", 100))]:
        if context.stopping:
            return
        await asyncio.to_thread(old.unlink)
