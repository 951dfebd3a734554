-- Events and the offsets that stand for them; cursors, their history, what was seen; leases.
-- The schema `ingest` itself is made by the runner.

CREATE TABLE ingest.events (
    event_id    text COLLATE "C" PRIMARY KEY,  -- a locale's order changes with the system, and would break the index
    source      text NOT NULL,
    stream      text NOT NULL,
    key         text NOT NULL,
    type        text NOT NULL,
    occurred_at timestamptz,
    ingested_at timestamptz NOT NULL DEFAULT statement_timestamp(),  -- one value a batch: the index stays tiny
    topic       text NOT NULL,
    partition   integer NOT NULL,
    "offset"    bigint NOT NULL,
    payload     json NOT NULL           -- json, not jsonb: the text stays as it came
);
CREATE INDEX events_ingested_at ON ingest.events (ingested_at);

-- The next offset that a consumer reads; moved in the transaction of the rows, by compare-and-set.
CREATE TABLE ingest.offsets (
    consumer    text NOT NULL,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    next_offset bigint NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, topic, partition)
);

-- A lease is never deleted: its fence must only grow.
CREATE TABLE ingest.leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    fence      bigint NOT NULL,
    clean      boolean NOT NULL,        -- the holder before released it
    taken_at   timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL     -- '-infinity': released
) WITH (fillfactor = 50);

CREATE TABLE ingest.checkpoints (
    source     text NOT NULL,
    stream     text NOT NULL,
    partition  text NOT NULL DEFAULT '',  -- of the stream: a parent's id; '' where it has none
    cursor     json NOT NULL,
    fence      bigint NOT NULL,
    seen       bigint NOT NULL DEFAULT 0, -- rows of this stream in ingest.seen
    seen_in    text,                      -- the log and topic that they speak of
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, stream, partition)
) WITH (fillfactor = 70);

CREATE TABLE ingest.checkpoint_history (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source    text NOT NULL,
    stream    text NOT NULL,
    partition text NOT NULL DEFAULT '',
    cursor    json NOT NULL,
    fence     bigint NOT NULL,
    note      text NOT NULL,
    saved_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX checkpoint_history_stream ON ingest.checkpoint_history (source, stream, id);

-- Per id: the version published last; when a sweep last listed it; whether it is dead.
CREATE TABLE ingest.seen (
    source   text NOT NULL,
    stream   text NOT NULL,
    id       text NOT NULL,
    version  text NOT NULL,
    position bigint,
    sweep    bigint,
    dead     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (source, stream, id)
);
CREATE INDEX seen_position ON ingest.seen (source, stream, position) WHERE position IS NOT NULL;

-- Records too large for any topic; their dead letters point here.
CREATE TABLE ingest.oversized (
    event_id text PRIMARY KEY,
    source   text NOT NULL,
    stream   text NOT NULL,
    headers  bytea NOT NULL,
    payload  bytea NOT NULL,
    kept_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
