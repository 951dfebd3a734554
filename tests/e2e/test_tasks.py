"""Tasks as a user meets them: the example is checked, enqueued from Python, and worked off by `ingest worker`."""

import json
import shutil
from pathlib import Path

import pytest

from ingest.jobs import enqueue, enqueue_async
from tests.e2e.command import Engine, Ingest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tasks"
EMBEDDED = Engine("embedded", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, as the working directory of somebody's own program."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["embedded", "postgres"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "embedded":
        return EMBEDDED
    environment = {"INGEST_STATE_URL": str(request.getfixturevalue("postgres_url"))}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Engine("postgres", environment)


async def test_the_example_does_what_it_says(engine: Engine, folder: Path) -> None:
    ingest = Ingest(folder, engine)
    assert "2 tasks" in (await ingest("check")).out
    assert (await enqueue_async("task:report", {"to": "board"})).fresh
    done = (await ingest("worker", "--once", "--json")).json
    assert {name: number for name, number in done.items() if number} == {"done": 2}, "the report, and what it enqueued"
    [report] = (folder / "out").iterdir()
    assert report.name.endswith("-board.json")
    assert json.loads(report.read_text()) == {"to": "board", "attempt": 1}


def test_a_job_can_be_enqueued_for_later_and_once_from_code_that_is_not_async(folder: Path) -> None:
    first = enqueue("task:tidy", {"keep": 1}, run_at=4e9, dedupe_key="tidy", config=folder / "ingest.yaml")
    assert first.fresh
    assert enqueue("task:tidy", dedupe_key="tidy") == (first.id, False)


async def test_failures_decide_the_exit_code_and_a_wrong_name_is_said_with_its_place(folder: Path) -> None:
    ingest = Ingest(folder, EMBEDDED)
    await enqueue_async("task:tidy", {"keep": "many"})
    failed = await ingest("worker", "--once", code=3)
    assert "1 to be tried again" in failed.out
    assert "TypeError" in failed.err
    (folder / "reports.py").write_text("def write(context): ...\ndef tidier(context): raise SystemExit\n")
    wrong = await ingest("worker", "--once", code=2)
    assert "ingest.yaml:20:11: `reports` has no `tidy`; did you mean `tidier`?" in wrong.err
