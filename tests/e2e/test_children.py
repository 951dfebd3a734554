"""A stream of children, as a user meets it: the real command ends in the middle, and nothing of any parent is lost."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.harness.names import unique

REPOS, ISSUES, PAGE = 30, 25, 10


class GitHub:
    """Repositories with issues, each list in pages of ten. `enough` is set with the answer to the n-th request."""

    def __init__(self, api: FakeApi) -> None:
        self.requests, self.enough, self.after = api.requests, asyncio.Event(), 0
        self.repos: dict[str, int] = {f"r{n}": ISSUES for n in range(REPOS)}
        api.routes = self  # type: ignore[assignment]

    def get(self, path: str) -> object:
        return self.answer

    def answer(self, request: Request) -> Answer:
        if len(self.requests) == self.after:
            self.enough.set()
        at, since = int(request.query.get("at", 0)), int(request.query.get("since", 0))
        _, *names = request.path.split("/")
        if names == ["repos"]:
            rows: list[dict[str, object]] = [{"id": name, "full": f"acme/{name}"} for name in self.repos]
        elif names[1] in self.repos:
            rows = [{"id": n, "n": n} for n in range(1, self.repos[names[1]] + 1) if n >= since]
        else:
            return Answer(request, status=404, body=b"{}")
        more = at + PAGE < len(rows)
        query = f"?at={at + PAGE}" + (f"&since={since}" if since else "")
        body = {"data": rows[at : at + PAGE], "next": f"{request.origin}{request.path}{query}" if more else None}
        return Answer(request, body=json.dumps(body).encode())

    def expected(self) -> list[str]:
        return sorted(f"{name}|{n}" for name, count in self.repos.items() for n in range(1, count + 1))


@pytest_asyncio.fixture
async def github() -> AsyncIterator[tuple[GitHub, str]]:
    async with FakeApi() as api:
        yield GitHub(api), api.url


def configured(folder: Path, url: str, source: str, incremental: str) -> None:
    (folder / "ingest.yaml").write_text(f"""
version: 1
sources:
  {source}:
    base_url: {url}
    limits: {{concurrency: 4}}
    defaults: {{records: $.data, id: id, paginate: {{type: next_url, from: $.next}}}}
    streams:
      repos: {{path: /repos}}
      issues:
        parent: {{stream: repos, skip_on: [404]}}
        path: "/repos/{{parent.id}}/issues"
        records: {{path: $.data, keep: {{repo: parent.full}}}}
        incremental: {incremental}
consumers:
  warehouse: {{kind: store, topics: ["{source}.*"], batch: {{wait: 50ms}}}}
topics: {{partitions: 3, replication: 1, min_insync: 1, durability: relaxed}}
""")


async def stored(ingest: Ingest, source: str) -> list[str]:
    done = await ingest("events", "--source", source, "--stream", "issues", "--format", "jsonl")
    return sorted(json.loads(line)["event_id"].split(":")[2].split("@")[0] for line in done.out.splitlines())


async def test_a_run_that_is_cut_off_again_and_again_reads_every_parent_to_its_end(
    github: tuple[GitHub, str], engine: Engine, tmp_path: Path
) -> None:
    """Killed where the next process sees that it died; elsewhere that one would wait for the end of the lease."""
    served, url = github
    ending = signal.SIGKILL if engine.name == "embedded" else signal.SIGTERM
    source = unique("github")
    configured(tmp_path, url, source, "{type: integer, field: n, since: {param: since}, order: asc}")
    ingest = Ingest(tmp_path, engine)
    for after in (15, 20, 25):
        served.after = len(served.requests) + after
        served.enough.clear()
        process = await ingest.start("run", "--source", source, "--stream", "issues", "--once")
        await asyncio.wait_for(served.enough.wait(), 60)
        process.send_signal(ending)
        await process.communicate()
    before = len(served.requests)
    done = (await ingest("run", "--source", source, "--stream", "issues", "--once", "--json")).json[0]
    assert (done["outcome"], done["reason"]) == ("complete", f"every parent was listed: {REPOS}")
    assert len(served.requests) - before < 3 + REPOS * 3 - 20  # it went on where it was
    await ingest("consume", "warehouse", "--once")
    assert await stored(ingest, source) == served.expected()
    served.repos |= {"r1": ISSUES + 2, "new": 3}
    del served.repos["r2"]
    done = (await ingest("run", "--source", source, "--once", "--json")).json
    assert [(one["stream"], one["outcome"], one["events"]) for one in done] == [
        ("repos", "complete", REPOS), ("issues", "complete", 5)
    ]  # fmt: skip
    shown = json.loads((await ingest("checkpoints", "show", f"{source}/issues", "--parent", "r1")).out)
    assert shown["high_water"] == ISSUES + 2
    await ingest("checkpoints", "set", f"{source}/issues", "5", "--parent", "r1")
    done = (await ingest("run", "--source", source, "--stream", "issues", "--once", "--json")).json[0]
    assert (done["outcome"], done["events"]) == ("complete", ISSUES + 2 - 4 - 1)
