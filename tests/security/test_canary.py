"""No secret comes out of the real command: not on its outputs, not in any file that it writes."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi
from tests.unit.test_canary import FAILURES, GIVING, SECRET, SECRETS, assert_clean, auth, give, listing, shown


def configured(folder: Path, api: FakeApi, kind: str) -> Ingest:
    source = {
        "base_url": api.url,
        **auth(kind, api.url),
        "params": {"key": "${env:CANARY}"},
        "headers": {"X-Key": "Key ${env:CANARY}"},
        "retry": {"attempts": 2, "base": "1ms", "cap": "1ms"},
        "streams": {
            "events": {
                "path": "/events",
                "records": "$.data",
                "id": "id",
                "paginate": {"type": "next_url", "from": "$.next"},
            }
        },
    }
    (folder / "ingest.yaml").write_text(json.dumps({"version": 1, "sources": {"api": source}}))
    return Ingest(folder, Engine("embedded", {}), CANARY=SECRET)


def written(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("kind", ["oauth2 refresh", "session query", "hmac"])
async def test_a_command_shows_and_keeps_no_secret(tmp_path: Path, kind: str) -> None:
    async with FakeApi() as api:
        ingest = configured(tmp_path, api, kind)
        api.routes |= dict.fromkeys(GIVING.values(), give) | {"/me": lambda request: FAILURES["no JSON"](request)}
        answers = iter([listing])
        api.routes["/events"] = lambda request: next(answers, FAILURES["500"])(request)
        said = []
        for arguments, code, pages in (
            (("check",), 0, 0),
            (("explain",), 0, 0),
            (("run", "--once", "--log-level", "debug"), 3, 2),
            (("preview", "-s", "api", "-t", "events", "--http", "--save", "kept", "-p", "2"), 0, 2),
            (("preview", "-s", "api", "-t", "events", "--replay", "kept", "-p", "2"), 0, 0),
            (("run", "--once"), 3, 0),
            (("checkpoints", "show", "api/events"), 0, 0),
        ):
            answers = iter([listing] * pages)
            done = await ingest(*arguments, code=code)
            said.append(done.out + done.err)
        asked = [request for request in api.requests if request.path == "/events"]
    assert all(request.query["key"] == SECRET for request in asked)
    assert {shown(request) != "nothing" for request in asked} == {kind != "hmac"}
    assert_clean("\n".join(said))
    files = written(tmp_path)
    assert {"ingest.db", "001.json"} <= {file.name for file in files}
    for file in files:
        assert not [secret for secret in SECRETS if secret.encode() in file.read_bytes()], file
        if file.suffix == ".json":
            assert_clean(file.read_text())
