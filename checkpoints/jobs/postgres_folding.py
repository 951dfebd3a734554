"""A schedule has one dead job, which counts those before it: a stream that fails every five minutes is one thing to
look at, not 288 a day."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.postgres import Connection


async def fold(connection: "Connection", died: Sequence[int]) -> None:
    """Into each of these that is a schedule's, the other dead jobs of that schedule; their attempts go with them."""
    await connection.execute(
        """WITH latest AS MATERIALIZED (
               SELECT schedule, max(id) AS id FROM ingest.jobs
               WHERE id = ANY($1::bigint[]) AND schedule IS NOT NULL GROUP BY schedule),
           gone AS (
               DELETE FROM ingest.jobs AS j USING latest
               WHERE j.schedule = latest.schedule AND j.state = 'dead' AND j.id <> latest.id
               RETURNING latest.id, j.deaths)
           UPDATE ingest.jobs AS j SET deaths = j.deaths + folded.number
           FROM (SELECT id, sum(deaths + 1) AS number FROM gone GROUP BY id) AS folded WHERE j.id = folded.id""",
        died,
    )
