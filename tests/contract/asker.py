"""A process that polls a source: `python -m tests.contract.asker STATE_URL API_URL NAME LIMITS REQUESTS STREAMS`.

Says that it is ready, waits for a line of input, makes so many requests, in so many streams side by side, as fast as
the limits (JSON) allow, and prints when each was let through: {"NAME-0": seconds of the machine's monotonic clock, …}.
"""

import asyncio
import json
import sys

import httpx

from checkpoints import StreamId
from ingest.config.model import Limits, Retry
from ingest.report import Report
from ingest.sources.gate import Gate
from tests.contract.states import open_state


class Saying(Report):
    """Says when the state store is away, once."""

    said = False

    def waiting(self, delay: float, reason: str) -> None:
        super().waiting(delay, reason)
        if "state store" in reason and not Saying.said:
            Saying.said = True
            print("the state store is away", flush=True)


async def ask(state_url: str, api_url: str, name: str, limits: str, requests: int, streams: int) -> dict[str, float]:
    left = iter(range(requests))
    let_through: dict[str, float] = {}
    async with open_state(state_url) as state, httpx.AsyncClient(trust_env=False) as client:
        gate = Gate("shared", Limits.model_validate_json(limits), state.rates, name)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def stream(report: Report) -> None:
            for n in left:
                async with gate.turn(report.stream.stream, report, Retry(), lambda: f"GET {api_url}") as turn:
                    let_through[f"{name}-{n}"] = turn.departed_at
                    await client.get(f"{api_url}?id={name}-{n}")

        async with asyncio.TaskGroup() as group:
            for n in range(streams):
                group.create_task(stream(Saying(StreamId("shared", f"{n}"))))
    return let_through


if __name__ == "__main__":
    found = asyncio.run(ask(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])))  # type: ignore[call-arg, arg-type]
    print(json.dumps(found), flush=True)
