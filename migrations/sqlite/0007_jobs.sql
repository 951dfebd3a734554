-- Durable jobs with an attempt's history, caps, schedules with every tick, workers. All times are milliseconds.

CREATE TABLE jobs (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    kind             TEXT NOT NULL,
    source           TEXT NOT NULL,          -- what caps, pauses and fairness go by
    queue            TEXT NOT NULL,
    payload          TEXT NOT NULL,
    state            TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done', 'dead')),
    priority         INTEGER NOT NULL DEFAULT 0,
    run_at           INTEGER NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,   -- counted when claimed
    max_attempts     INTEGER NOT NULL,
    rescues          INTEGER NOT NULL DEFAULT 0,
    releases         INTEGER NOT NULL DEFAULT 0,
    fence            INTEGER NOT NULL DEFAULT 0,   -- grows with every claim, and with nothing else
    worker           TEXT,
    claimed_at       INTEGER,
    lease_until      INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    progress         TEXT,
    schedule         TEXT,
    tick_at          INTEGER,
    tick_from        INTEGER,
    overlap          TEXT,                   -- skip | queue_one | cancel_previous; NULL: any number at a time
    dedupe_key       TEXT,
    dedupe_for       INTEGER,
    last_error_class TEXT,
    last_error       TEXT,
    dead_reason      TEXT,                   -- permanent | exhausted | cancelled
    deaths           INTEGER NOT NULL DEFAULT 0,   -- of earlier jobs of its schedule, folded into this dead one
    note             TEXT,                   -- what a person did last, who and when
    created_at       INTEGER NOT NULL,
    finished_at      INTEGER,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('done', 'dead')) = (finished_at IS NOT NULL))
);
-- A job is in one of these four at a time: each more costs as much as the row itself. None holds lease_until: a
-- heartbeat changes no index.
CREATE INDEX jobs_ready ON jobs (source, priority, run_at, id) WHERE state = 'pending';
CREATE INDEX jobs_running ON jobs (source) WHERE state = 'running';
CREATE INDEX jobs_done ON jobs (finished_at) WHERE state = 'done';
CREATE INDEX jobs_dead ON jobs (source) WHERE state = 'dead';
CREATE INDEX jobs_schedule ON jobs (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX jobs_of_schedule ON jobs (schedule) WHERE schedule IS NOT NULL AND state IN ('pending', 'running');
CREATE UNIQUE INDEX jobs_dedupe ON jobs (dedupe_key)
    WHERE dedupe_key IS NOT NULL AND state IN ('pending', 'running');
CREATE INDEX jobs_deduped ON jobs (dedupe_key, finished_at) WHERE dedupe_for IS NOT NULL AND state = 'done';
-- Overlap is the database's affair: one live job of the schedule, or one that waits and has never been claimed: one that
-- comes back for another attempt finds the next one waiting already, and must not be refused.
CREATE UNIQUE INDEX jobs_skip ON jobs (schedule) WHERE overlap = 'skip' AND state IN ('pending', 'running');
CREATE UNIQUE INDEX jobs_queue_one ON jobs (schedule)
    WHERE overlap IN ('queue_one', 'cancel_previous') AND state = 'pending' AND fence = 0;

CREATE TABLE attempts (
    job         INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    fence       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    worker      TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    outcome     TEXT,                        -- done | retry | dead | lost | released | cancelled; NULL: under way
    error_class TEXT,
    error       TEXT,
    retry_at    INTEGER,
    PRIMARY KEY (job, fence)
) WITHOUT ROWID;

-- What limits a source and who was served last.
CREATE TABLE sources (
    name          TEXT PRIMARY KEY,
    max_running   INTEGER,                   -- by the configuration; NULL: no cap
    limited_to    INTEGER,                   -- by a person; goes before the other
    paused_until  INTEGER,                   -- 9223372036854775807: until a person says otherwise
    pause_note    TEXT,
    last_claim_at INTEGER
) WITHOUT ROWID;

CREATE TABLE queues (
    name        TEXT PRIMARY KEY,
    max_running INTEGER
) WITHOUT ROWID;

CREATE TABLE schedules (
    id         TEXT PRIMARY KEY,
    spec       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    cursor_at  INTEGER NOT NULL,             -- every tick up to here has been decided; 0: it is new, its latest fires
    paused_at  INTEGER,                      -- by a person
    resumed_at INTEGER,                      -- ticks up to here fell into a pause
    note       TEXT,
    absent     INTEGER NOT NULL DEFAULT 0     -- paused because it is not configured any more
) WITHOUT ROWID;

CREATE TABLE ticks (
    schedule   TEXT NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    tick_at    INTEGER NOT NULL,
    outcome    TEXT NOT NULL,
    covers     INTEGER NOT NULL DEFAULT 1,   -- how many ticks the row stands for, this one and those before it
    job        INTEGER,
    note       TEXT,
    decided_at INTEGER NOT NULL,
    decided_by TEXT NOT NULL,
    PRIMARY KEY (schedule, tick_at)
) WITHOUT ROWID;
CREATE INDEX ticks_decided_at ON ticks (decided_at);

CREATE TABLE workers (
    name       TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    version    TEXT NOT NULL,
    slots      INTEGER NOT NULL,
    kinds      TEXT NOT NULL,                -- JSON
    sources    TEXT NOT NULL,                -- JSON
    running    INTEGER NOT NULL DEFAULT 0,
    lost       INTEGER NOT NULL DEFAULT 0,   -- claims that it lost since it started
    stopping   INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    beat_at    INTEGER NOT NULL
) WITHOUT ROWID;

-- How many attempts ended how, by minute: a summary need not count what is done.
CREATE TABLE tallies (
    source  TEXT NOT NULL,
    minute  INTEGER NOT NULL,
    worker  TEXT NOT NULL,
    done    INTEGER NOT NULL DEFAULT 0,
    failed  INTEGER NOT NULL DEFAULT 0,      -- attempts that ended in retry, dead or lost
    seconds REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (source, minute, worker)
) WITHOUT ROWID;

-- What people are told of, once each: a row lasts as long as the incident does.
CREATE TABLE incidents (
    subject     TEXT PRIMARY KEY,         -- a job's id, or its schedule's
    event       TEXT NOT NULL,            -- job.dead | stream.failed
    message     TEXT NOT NULL,
    job         INTEGER,                  -- that is dead, when it began; NULL: a stream that runs without jobs
    opened_at   INTEGER NOT NULL,
    told_at     INTEGER,                  -- NULL: not yet
    tries       INTEGER NOT NULL DEFAULT 0,
    next_try_at INTEGER NOT NULL
) WITHOUT ROWID;
