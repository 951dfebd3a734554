-- Durable jobs with an attempt's history, caps, schedules with every tick, workers. All times by clock_timestamp().

CREATE TABLE ingest.jobs (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind             text NOT NULL,
    source           text NOT NULL,          -- what caps, pauses and fairness go by
    queue            text NOT NULL,
    payload          json NOT NULL,
    state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done', 'dead')),
    priority         integer NOT NULL DEFAULT 0,
    run_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts         integer NOT NULL DEFAULT 0,   -- counted when claimed
    max_attempts     integer NOT NULL,
    rescues          integer NOT NULL DEFAULT 0,
    releases         integer NOT NULL DEFAULT 0,
    fence            bigint NOT NULL DEFAULT 0,    -- grows with every claim, and with nothing else
    worker           text,
    claimed_at       timestamptz,
    lease_until      timestamptz,            -- not indexed: a heartbeat stays a HOT update
    cancel_requested boolean NOT NULL DEFAULT false,
    progress         json,
    schedule         text,
    tick_at          timestamptz,
    tick_from        timestamptz,
    overlap          text,                   -- skip | queue_one | cancel_previous; NULL: any number at a time
    dedupe_key       text,
    dedupe_for       interval,
    last_error_class text,
    last_error       text,
    dead_reason      text,                   -- permanent | exhausted | cancelled
    deaths           integer NOT NULL DEFAULT 0,   -- of earlier jobs of its schedule, folded into this dead one
    note             text,                   -- what a person did last, who and when
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('done', 'dead')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE INDEX jobs_ready ON ingest.jobs (source, priority, run_at, id) WHERE state = 'pending';
CREATE INDEX jobs_done ON ingest.jobs (finished_at) WHERE state = 'done';
CREATE INDEX jobs_live ON ingest.jobs (state, source, run_at) WHERE state IN ('pending', 'running', 'dead');
CREATE INDEX jobs_schedule ON ingest.jobs (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX jobs_of_schedule ON ingest.jobs (schedule) WHERE schedule IS NOT NULL AND state IN ('pending', 'running');
CREATE UNIQUE INDEX jobs_dedupe ON ingest.jobs (dedupe_key)
    WHERE dedupe_key IS NOT NULL AND state IN ('pending', 'running');
CREATE INDEX jobs_deduped ON ingest.jobs (dedupe_key, finished_at)
    WHERE dedupe_for IS NOT NULL AND state = 'done';
-- Overlap is the database's affair: one live job of the schedule, or one that waits and has never been claimed: one that
-- comes back for another attempt finds the next one waiting already, and must not be refused.
CREATE UNIQUE INDEX jobs_skip ON ingest.jobs (schedule)
    WHERE overlap = 'skip' AND state IN ('pending', 'running');
CREATE UNIQUE INDEX jobs_queue_one ON ingest.jobs (schedule)
    WHERE overlap IN ('queue_one', 'cancel_previous') AND state = 'pending' AND fence = 0;

CREATE TABLE ingest.attempts (
    job         bigint NOT NULL REFERENCES ingest.jobs (id) ON DELETE CASCADE,
    fence       bigint NOT NULL,
    attempt     integer NOT NULL,
    worker      text NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz,
    outcome     text,                        -- done | retry | dead | lost | released | cancelled; NULL: under way
    error_class text,
    error       text,
    retry_at    timestamptz,
    PRIMARY KEY (job, fence)
) WITH (fillfactor = 70);  -- each row is written once more, when its attempt ends

-- What limits a source and who was served last; a row is locked while its jobs are claimed.
CREATE TABLE ingest.sources (
    name          text PRIMARY KEY,
    max_running   integer,                   -- by the configuration; NULL: no cap
    limited_to    integer,                   -- by a person; goes before the other
    paused_until  timestamptz,               -- 'infinity': until a person says otherwise
    pause_note    text,
    last_claim_at timestamptz
) WITH (fillfactor = 50);

CREATE TABLE ingest.queues (
    name        text PRIMARY KEY,
    max_running integer
);

CREATE TABLE ingest.schedules (
    id         text PRIMARY KEY,
    spec       text NOT NULL,
    digest     text NOT NULL,
    cursor_at  timestamptz NOT NULL,         -- every tick up to here has been decided; 1970: it is new, its latest fires
    paused_at  timestamptz,                  -- by a person
    resumed_at timestamptz,                  -- ticks up to here fell into a pause
    note       text,
    absent     boolean NOT NULL DEFAULT false -- paused because it is not configured any more
);

CREATE TABLE ingest.ticks (
    schedule   text NOT NULL REFERENCES ingest.schedules (id) ON DELETE CASCADE,
    tick_at    timestamptz NOT NULL,
    outcome    text NOT NULL,
    covers     integer NOT NULL DEFAULT 1,   -- how many ticks the row stands for, this one and those before it
    job        bigint,
    note       text,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text NOT NULL,
    PRIMARY KEY (schedule, tick_at)
);
CREATE INDEX ticks_decided_at ON ingest.ticks (decided_at);

CREATE TABLE ingest.workers (
    name       text PRIMARY KEY,
    host       text NOT NULL,
    pid        integer NOT NULL,
    version    text NOT NULL,
    slots      integer NOT NULL,
    kinds      text[] NOT NULL,
    sources    text[] NOT NULL,
    running    integer NOT NULL DEFAULT 0,
    lost       bigint NOT NULL DEFAULT 0,    -- claims that it lost since it started
    stopping   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- How many attempts ended how, by minute: a summary need not count what is done.
CREATE TABLE ingest.tallies (
    source  text NOT NULL,
    minute  timestamptz NOT NULL,
    worker  text NOT NULL,                   -- a row is one worker's: nobody waits for another's
    done    bigint NOT NULL DEFAULT 0,
    failed  bigint NOT NULL DEFAULT 0,       -- attempts that ended in retry, dead or lost
    seconds double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (source, minute, worker)
) WITH (fillfactor = 50);

-- What people are told of, once each: a row lasts as long as the incident does.
CREATE TABLE ingest.incidents (
    subject     text PRIMARY KEY,         -- a job's id, or its schedule's
    event       text NOT NULL,            -- job.dead | stream.failed
    message     text NOT NULL,
    job         bigint,                   -- that is dead, when it began; NULL: a stream that runs without jobs
    opened_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    told_at     timestamptz,              -- NULL: not yet
    tries       integer NOT NULL DEFAULT 0,
    next_try_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Claiming and finishing are functions because a session keeps their plans: making one takes longer than these statements
-- run. Nor does a table that is still without statistics mislead them: every row they touch is found by an index.

-- What is done, of those whose fence is still theirs. The counts are a row of this worker's own: nobody waits for it.
CREATE FUNCTION ingest.finish_jobs(by_worker text, ids bigint[], fences bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH ended AS (
        UPDATE ingest.jobs AS j
        SET state = 'done', finished_at = clock_timestamp(), worker = NULL, lease_until = NULL,
            last_error_class = NULL, last_error = NULL
        FROM unnest(ids, fences) AS said (id, fence)
        WHERE j.id = said.id AND j.fence = said.fence AND j.state = 'running'
        RETURNING j.id, j.fence, j.source, j.claimed_at),
    written AS (
        UPDATE ingest.attempts AS a SET ended_at = clock_timestamp(), outcome = 'done'
        FROM ended AS e WHERE a.job = e.id AND a.fence = e.fence)
    INSERT INTO ingest.tallies AS t (source, minute, worker, done, seconds)
    SELECT source, date_trunc('minute', (SELECT clock_timestamp())), by_worker, count(*),
        sum(extract(epoch FROM clock_timestamp() - claimed_at))
    FROM ended GROUP BY source ORDER BY source
    ON CONFLICT (source, minute, worker) DO UPDATE
        SET done = t.done + excluded.done, seconds = t.seconds + excluded.seconds;
END $$;

-- At most `number` jobs for a worker, of these kinds and sources (empty: any). Whoever claims locks the rows of sources and
-- of queues with a cap, and counts what runs in a statement that begins after that: so no cap is exceeded. Rows that
-- another holds are passed over; `patient`: the lock of one source is waited for. Of several sources each gives one job,
-- then each another; `by_age`: the earliest, whatever their priority. Of schedules whose jobs run one at a time, one.
-- The setting ingest.missed says afterwards what was passed over: source, queue or nothing.
CREATE FUNCTION ingest.claim_jobs(
    by_worker text, number integer, ttl interval, kinds text[], wanted text[], by_age boolean, patient boolean)
RETURNS SETOF ingest.jobs
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    roomy text[] := ARRAY(
        SELECT name FROM ingest.queues AS q WHERE max_running > (
            SELECT count(*) FROM ingest.jobs AS r WHERE r.state = 'running' AND r.queue = q.name));
    ripe text[] := ARRAY(
        SELECT name FROM ingest.sources AS s
        WHERE (paused_until IS NULL OR paused_until <= (SELECT clock_timestamp()))
            AND (name = ANY (wanted) OR wanted = '{}')
            AND coalesce(limited_to, max_running, number) > (
                SELECT count(*) FROM ingest.jobs AS r WHERE r.state = 'running' AND r.source = s.name
                    AND coalesce(s.limited_to, s.max_running) IS NOT NULL)
            AND EXISTS (
                SELECT FROM ingest.jobs AS p
                WHERE p.source = s.name AND p.state = 'pending' AND p.run_at <= (SELECT clock_timestamp())
                    AND (p.kind = ANY (kinds) OR kinds = '{}')
                    AND p.queue NOT IN (
                        SELECT name FROM ingest.queues WHERE max_running IS NOT NULL AND name <> ALL (roomy))));
    free text[] := ARRAY(SELECT name FROM ingest.queues WHERE name = ANY (roomy) FOR NO KEY UPDATE SKIP LOCKED);
    locked text[];
BEGIN
    IF patient THEN
        locked := ARRAY(
            SELECT name FROM ingest.sources WHERE name = ANY (ripe)
            ORDER BY last_claim_at NULLS FIRST, name LIMIT 1 FOR NO KEY UPDATE);
    ELSE
        locked := ARRAY(
            SELECT name FROM ingest.sources WHERE name = ANY (ripe)
            ORDER BY last_claim_at NULLS FIRST, name LIMIT number FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    PERFORM set_config('ingest.missed', CASE
        WHEN NOT patient AND cardinality(locked) < least(cardinality(ripe), number) THEN 'source'
        WHEN cardinality(free) < cardinality(roomy) THEN 'queue' ELSE '' END, true);
    RETURN QUERY
    WITH capped AS MATERIALIZED (
        SELECT q.name, q.max_running - (
            SELECT count(*) FROM ingest.jobs AS r WHERE r.state = 'running' AND r.queue = q.name) AS room
        FROM ingest.queues AS q WHERE q.name = ANY (free) AND q.max_running IS NOT NULL),
    shut AS MATERIALIZED (
        SELECT q.name FROM ingest.queues AS q
        WHERE q.max_running IS NOT NULL AND q.name NOT IN (SELECT c.name FROM capped AS c WHERE c.room > 0)),
    source AS MATERIALIZED (
        SELECT s.name, s.last_claim_at, least(number, coalesce(s.limited_to, s.max_running) - (
            SELECT count(*) FROM ingest.jobs AS r WHERE r.state = 'running' AND r.source = s.name)) AS room
        FROM ingest.sources AS s WHERE s.name = ANY (locked)),
    candidate AS (
        SELECT s.name, s.last_claim_at, p.id, p.queue,
            row_number() OVER (PARTITION BY s.name ORDER BY p.rank, p.run_at, p.id) AS turn,
            row_number() OVER (PARTITION BY p.alone ORDER BY p.rank, p.run_at, p.id) AS of_schedule
        FROM source AS s CROSS JOIN LATERAL (
            (SELECT j.id, j.queue, j.priority AS rank, j.run_at,
                CASE WHEN j.overlap IN ('queue_one', 'cancel_previous') THEN j.schedule ELSE j.id::text END AS alone
             FROM ingest.jobs AS j
             WHERE NOT by_age AND j.source = s.name AND j.state = 'pending' AND j.run_at <= (SELECT clock_timestamp())
                AND (j.kind = ANY (kinds) OR kinds = '{}') AND j.queue NOT IN (SELECT name FROM shut)
                AND (j.overlap IS NULL OR j.overlap = 'skip' OR NOT EXISTS (
                    SELECT FROM ingest.jobs AS r WHERE r.source = s.name AND r.state = 'running'
                        AND r.schedule = j.schedule AND r.overlap <> 'skip'))
             ORDER BY j.priority, j.run_at, j.id LIMIT greatest(s.room, 0))
            UNION ALL
            (SELECT j.id, j.queue, 0, j.run_at,
                CASE WHEN j.overlap IN ('queue_one', 'cancel_previous') THEN j.schedule ELSE j.id::text END
             FROM ingest.jobs AS j
             WHERE by_age AND j.source = s.name AND j.state = 'pending' AND j.run_at <= (SELECT clock_timestamp())
                AND (j.kind = ANY (kinds) OR kinds = '{}') AND j.queue NOT IN (SELECT name FROM shut)
                AND (j.overlap IS NULL OR j.overlap = 'skip' OR NOT EXISTS (
                    SELECT FROM ingest.jobs AS r WHERE r.source = s.name AND r.state = 'running'
                        AND r.schedule = j.schedule AND r.overlap <> 'skip'))
             ORDER BY j.run_at, j.id LIMIT greatest(s.room, 0))) AS p),
    placed AS (
        SELECT c.*, row_number() OVER (PARTITION BY c.queue ORDER BY c.turn, c.last_claim_at NULLS FIRST, c.name) AS place
        FROM candidate AS c WHERE c.of_schedule = 1),
    chosen AS (
        SELECT c.id FROM placed AS c LEFT JOIN capped AS q ON q.name = c.queue
        WHERE q.name IS NULL OR c.place <= q.room
        ORDER BY c.turn, c.last_claim_at NULLS FIRST, c.name LIMIT number),
    claimed AS (
        UPDATE ingest.jobs AS j
        SET state = 'running', attempts = j.attempts + 1, fence = j.fence + 1, worker = by_worker,
            claimed_at = clock_timestamp(), lease_until = clock_timestamp() + ttl, cancel_requested = false
        FROM chosen WHERE j.id = chosen.id AND j.state = 'pending'
        RETURNING j.*),
    history AS (
        INSERT INTO ingest.attempts (job, fence, attempt, worker, started_at)
        SELECT c.id, c.fence, c.attempts, by_worker, c.claimed_at FROM claimed AS c),
    served AS (
        UPDATE ingest.sources SET last_claim_at = clock_timestamp() WHERE name IN (SELECT c.source FROM claimed AS c))
    SELECT * FROM claimed;
END $$;
