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
