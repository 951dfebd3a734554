"""A process that holds a lease: `python -m tests.contract.lease_holder URL NAME HOLDER TTL`.

Prints the fence and keeps the lease, without renewing it, until its input is closed.
"""

import asyncio
import sys

from tests.contract.states import open_state


async def hold(url: str, name: str, holder: str, ttl: float) -> None:
    async with open_state(url) as state:
        lease = await state.leases.acquire(name, holder, ttl)
        print(lease.fence if lease else "held", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:4], float(sys.argv[4])))  # type: ignore[call-arg, arg-type]
