"""Schedules and their ticks in Postgres. The port is in `checkpoints.jobs`.

A firing moves the schedule's cursor first, from where it was read. Whoever comes second waits for that row, and finds
it moved, or, where the first was rolled back, as it was. All else happens under it, in the same transaction.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from checkpoints.jobs import (
    NOT_CONFIGURED,
    Fired,
    Firing,
    NewJob,
    Overlap,
    Schedule,
    ScheduleSpec,
    State,
    Tick,
    TickOutcome,
)
from checkpoints.jobs.overlap import GUARD, SUPERSEDED, Live, in_the_way, why
from checkpoints.jobs.postgres_folding import fold
from checkpoints.jobs.postgres_rows import CHANNEL
from ingest.errors import ConfigError
from ingest.postgres import Postgres

if TYPE_CHECKING:
    from ingest.postgres import Connection


class PostgresSchedules:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def declare(self, specs: Sequence[ScheduleSpec], prefix: str | None = "") -> Sequence[str]:
        named = sorted(specs)  # so that two who declare the same ones do not block each other
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """INSERT INTO ingest.schedules AS s (id, spec, digest, cursor_at)
                   SELECT id, spec, digest, CASE WHEN at_once THEN to_timestamp(0) ELSE clock_timestamp() END
                   FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[]) AS u (id, spec, digest, at_once)
                   ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, digest = excluded.digest, absent = false,
                       cursor_at = CASE WHEN s.digest <> excluded.digest OR s.absent THEN clock_timestamp()
                                        ELSE s.cursor_at END
                       WHERE (s.spec, s.digest, s.absent) IS DISTINCT FROM (excluded.spec, excluded.digest, false)
                   RETURNING id, xmax = 0 AS new""",
                *(list(column) for column in zip(*named, strict=True)) if named else ([], [], [], []),
            )
            await connection.execute(
                """UPDATE ingest.schedules SET absent = true
                   WHERE starts_with(id, $1) AND id <> ALL ($2::text[]) AND NOT absent""",
                prefix,
                [spec.id for spec in named],
            )
        return [row["id"] for row in rows if row["new"]]

    async def load(self, ids: Sequence[str]) -> Sequence[Schedule]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT id, spec, digest, extract(epoch FROM cursor_at)::float8 AS cursor_at,
                       extract(epoch FROM clock_timestamp())::float8 AS now,
                       paused_at IS NOT NULL OR absent AS paused,
                       CASE WHEN absent THEN coalesce(note, $2) ELSE note END AS note,
                       extract(epoch FROM resumed_at)::float8 AS resumed_at, (
                           SELECT min(j.id) FROM ingest.jobs AS j
                           WHERE j.schedule = s.id AND j.state IN ('pending', 'running')) AS running
                   FROM ingest.schedules AS s WHERE $1::text[] = '{}' OR id = ANY ($1::text[]) ORDER BY id""",
                list(ids),
                NOT_CONFIGURED,
            )
        return [Schedule(**row) for row in rows]

    async def fire(self, firing: Firing, decided_by: str) -> Fired:
        async with self._postgres.transaction() as connection:
            moved = await connection.fetchval(
                """UPDATE ingest.schedules SET cursor_at = to_timestamp($4)
                   WHERE id = $1 AND digest = $2 AND cursor_at = to_timestamp($3) AND paused_at IS NULL AND NOT absent
                   RETURNING true""",
                firing.id,
                firing.digest,
                firing.cursor_at,
                firing.cursor_to,
            )
            return await _fire(connection, firing, decided_by) if moved else Fired((), 0)

    async def trigger(self, id: str, job: NewJob, decided_by: str, overlap: Overlap) -> int | None:
        async with self._postgres.transaction() as connection:
            if await connection.fetchval("SELECT 1 FROM ingest.schedules WHERE id = $1 FOR NO KEY UPDATE", id) is None:
                raise ConfigError(f"there is no schedule `{id}`")
            live = await _live(connection, id, overlap)
            if in_the_way(overlap, live) is not None:
                return None
            note = f"triggered by {decided_by}"
            made = await _add_jobs(connection, id, job, overlap, [(None, None, job.run_at)], live, note)
            return made[0]

    async def pause(self, id: str, note: str | None) -> bool:
        async with self._postgres.transaction() as connection:
            status = await connection.execute(
                """UPDATE ingest.schedules SET paused_at = coalesce(paused_at, clock_timestamp()), note = $2
                   WHERE id = $1""",
                id,
                note,
            )
        return bool(status == "UPDATE 1")

    async def resume(self, id: str, *, catch_up: bool) -> bool:
        async with self._postgres.transaction() as connection:
            status = await connection.execute(
                """UPDATE ingest.schedules SET paused_at = NULL, note = NULL,
                       cursor_at = least(cursor_at, clock_timestamp()),
                       resumed_at = CASE WHEN $2 THEN NULL WHEN paused_at IS NULL THEN resumed_at
                                         ELSE clock_timestamp() END
                   WHERE id = $1""",
                id,
                catch_up,
            )
        return bool(status == "UPDATE 1")

    async def ticks(self, id: str, outcomes: Sequence[TickOutcome], limit: int) -> Sequence[Tick]:
        async with self._postgres.transaction() as connection:
            rows = await connection.fetch(
                """SELECT schedule, extract(epoch FROM tick_at)::float8 AS tick_at, outcome, covers, job, note,
                       extract(epoch FROM decided_at)::float8 AS decided_at, decided_by
                   FROM ingest.ticks WHERE schedule = $1 AND ($2::text[] = '{}' OR outcome = ANY ($2::text[]))
                   ORDER BY ticks.tick_at DESC LIMIT $3""",
                id,
                [one.value for one in outcomes],
                limit,
            )
        return [Tick(**{**row, "outcome": TickOutcome(row["outcome"])}) for row in rows]


async def _fire(connection: "Connection", firing: Firing, decided_by: str) -> Fired:
    """The cursor's row is ours."""
    skipped = 0
    if firing.skips:
        rows = await connection.fetch(
            """INSERT INTO ingest.ticks (schedule, tick_at, outcome, covers, note, decided_by)
               SELECT $1, to_timestamp(at), outcome, covers, note, $2
               FROM unnest($3::float8[], $4::text[], $5::integer[], $6::text[]) AS u (at, outcome, covers, note)
               ON CONFLICT DO NOTHING RETURNING covers""",
            firing.id,
            decided_by,
            *(list(column) for column in zip(*firing.skips, strict=True)),
        )
        skipped = sum(row["covers"] for row in rows)
    won = await connection.fetch(
        """INSERT INTO ingest.ticks (schedule, tick_at, outcome, decided_by)
           SELECT $1, to_timestamp(at), $2, $3 FROM unnest($4::float8[]) AS u (at)
           ON CONFLICT DO NOTHING RETURNING extract(epoch FROM tick_at)::float8 AS at""",
        firing.id,
        TickOutcome.ENQUEUED.value,
        decided_by,
        [fire.tick_at for fire in firing.fires],
    )
    ours = {row["at"] for row in won}
    fires = [fire for fire in firing.fires if fire.tick_at in ours]
    live = await _live(connection, firing.id, firing.overlap)
    blocked = in_the_way(firing.overlap, live)
    made: Sequence[int | None] = [None] * len(fires)
    if blocked is None:
        jobs = [(fire.tick_at, fire.tick_from, fire.run_at) for fire in fires]
        made = await _add_jobs(connection, firing.id, firing.job, firing.overlap, jobs, live)
        if None in made:
            blocked = in_the_way(firing.overlap, await _live(connection, firing.id, firing.overlap))
    await connection.execute(
        """UPDATE ingest.ticks SET job = u.job, outcome = CASE WHEN u.job IS NULL THEN $2 ELSE outcome END,
               note = CASE WHEN u.job IS NULL THEN $3 END
           FROM unnest($4::float8[], $5::bigint[]) AS u (at, job)
           WHERE schedule = $1 AND tick_at = to_timestamp(u.at)""",
        firing.id,
        TickOutcome.SKIPPED_OVERLAP.value,
        why(blocked),
        [fire.tick_at for fire in fires],
        made,
    )
    enqueued = [(fire.tick_at, job) for fire, job in zip(fires, made, strict=True) if job is not None]
    return Fired(enqueued, skipped + len(fires) - len(enqueued))


async def _live(connection: "Connection", id: str, overlap: Overlap) -> list[Live]:
    if overlap is Overlap.ALLOW:
        return []  # there may be many, and none is in the way
    rows = await connection.fetch(
        """SELECT id, state, fence, attempts, max_attempts FROM ingest.jobs
           WHERE schedule = $1 AND state IN ('pending', 'running') ORDER BY id""",
        id,
    )
    return [Live(**{**row, "state": State(row["state"])}) for row in rows]


async def _add_jobs(
    connection: "Connection", id: str, job: NewJob, overlap: Overlap,
    wanted: Sequence[tuple[float | None, float | None, float | None]], live: Sequence[Live], note: str | None = None,
) -> list[int | None]:  # fmt: skip
    """One for each (tick_at, tick_from, run_at); None where a job that was made just before is in the way."""
    rows = await connection.fetch(
        f"""WITH row AS MATERIALIZED (
                SELECT nextval('ingest.jobs_id_seq') AS id, u.*
                FROM unnest($9::float8[], $10::float8[], $11::float8[])
                    WITH ORDINALITY AS u (tick_at, tick_from, run_at, n)),
            known AS (INSERT INTO ingest.sources (name) VALUES ($2) ON CONFLICT DO NOTHING),
            added AS (
                INSERT INTO ingest.jobs (id, kind, source, queue, payload, priority, max_attempts, schedule, overlap,
                    tick_at, tick_from, run_at, note)
                OVERRIDING SYSTEM VALUE
                SELECT id, $1, $2, $3, $4::text::json, $5, $6, $7, $8, to_timestamp(tick_at), to_timestamp(tick_from),
                    coalesce(to_timestamp(run_at), clock_timestamp()), $12
                FROM row ORDER BY n ON CONFLICT DO NOTHING RETURNING id, run_at)
            SELECT n, added.id, CASE WHEN added.run_at <= clock_timestamp() THEN pg_notify('{CHANNEL}', '') END
            FROM added JOIN row USING (id)""",
        job.kind,
        job.source,
        job.queue,
        job.payload.decode(),
        job.priority,
        job.max_attempts,
        id,
        GUARD.get(overlap),
        *(list(column) for column in zip(*wanted, strict=True)) if wanted else ([], [], []),
        note,
    )
    made = {row["n"]: row["id"] for row in rows}
    if made and overlap is Overlap.CANCEL_PREVIOUS:
        await _cancel(connection, live)
    return [made.get(n + 1) for n in range(len(wanted))]


async def _cancel(connection: "Connection", live: Sequence[Live]) -> None:
    """A running job is asked to end; one that waits for another try has no other."""
    dead = await connection.fetch(
        """WITH previous AS MATERIALIZED (
               SELECT id FROM ingest.jobs
               WHERE id = ANY ($1::bigint[]) AND (state = 'running' OR state = 'pending' AND fence > 0)
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE ingest.jobs AS j SET cancel_requested = true, note = $2,
               state = CASE WHEN state = 'pending' THEN 'dead' ELSE state END,
               dead_reason = CASE WHEN state = 'pending' THEN 'cancelled' END,
               finished_at = CASE WHEN state = 'pending' THEN clock_timestamp() END
           FROM previous WHERE j.id = previous.id
           RETURNING j.id, j.state""",
        [one.id for one in live],
        SUPERSEDED,
    )
    await fold(connection, [row["id"] for row in dead if row["state"] == State.DEAD])
