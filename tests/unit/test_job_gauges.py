"""The metrics show how the queue stands when somebody looks, and nothing old while the database does not answer."""

from prometheus_client import REGISTRY

from checkpoints.jobs.desk import SourceSummary, Summary, Upkeep
from checkpoints.jobs.sqlite_desk import SqliteDesk
from ingest.errors import StoreUnavailable
from ingest.jobs.gauges import Gauges, show

SHOP = SourceSummary("shop", 3, 2, 1, 5, 4, 6, 90.0, None, 0, 0, 0.0, None, None, None)


def jobs(state: str, source: str = "shop") -> float | None:
    return REGISTRY.get_sample_value("ingest_jobs", {"source": source, "state": state})


def test_every_state_has_its_number_and_a_source_that_is_gone_has_none() -> None:
    show(Summary(100.0, [SHOP]), Upkeep(4096, 1.5))
    states = ("ready", "scheduled", "retrying", "running", "expired", "dead")
    assert [jobs(state) for state in states] == [3, 2, 1, 5, 4, 6]
    assert REGISTRY.get_sample_value("ingest_job_oldest_ready_seconds", {"source": "shop"}) == 10.0
    assert REGISTRY.get_sample_value("ingest_sqlite_wal_bytes") == 4096
    assert REGISTRY.get_sample_value("ingest_pg_oldest_xmin_seconds") == 1.5
    show(Summary(100.0, []), Upkeep(None, None))
    assert jobs("ready") is None


async def test_while_the_database_is_away_there_are_no_numbers_and_it_is_asked_now_and_then() -> None:
    show(Summary(100.0, [SHOP]), Upkeep(None, None))
    asked = []

    async def away() -> SqliteDesk:
        asked.append(1)
        raise StoreUnavailable("no answer")

    gauges = Gauges(away)
    for _ in range(3):
        await gauges.refresh()
    assert jobs("ready") is None and len(asked) == 1
