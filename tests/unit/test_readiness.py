"""What /readyz says."""

import httpx

from ingest.web.ops import application
from ingest.web.readiness import Readiness


async def asked(readiness: Readiness) -> tuple[int, str]:
    transport = httpx.ASGITransport(application(readiness))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/readyz")
        return response.status_code, response.text


async def test_what_is_lost_for_good_is_told_and_leaves_a_process_ready() -> None:
    readiness = Readiness(started=True, lost={"orders": "3 offsets", "invoices": "1 offset"})
    assert await asked(readiness) == (200, "ready\nlost: invoices: 1 offset\nlost: orders: 3 offsets\n")


async def test_what_does_not_answer_leaves_a_process_not_ready() -> None:
    readiness = Readiness(started=True)
    assert await asked(readiness) == (200, "ready\n")
    readiness.set("orders", "the store is away")
    assert await asked(readiness) == (503, "not ready: orders\n")
    readiness.set("orders", None)
    assert await asked(readiness) == (200, "ready\n")
    assert await asked(Readiness()) == (503, "not ready: starting\n")
