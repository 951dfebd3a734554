-- The same tables as in postgres/0001_spine.sql, and the log. Times are integers: milliseconds since 1970.

CREATE TABLE events (
    event_id    TEXT PRIMARY KEY,
    source      TEXT NOT NULL,
    stream      TEXT NOT NULL,
    key         TEXT NOT NULL,
    type        TEXT NOT NULL,
    occurred_at TEXT,                     -- RFC 3339 in UTC
    ingested_at INTEGER NOT NULL,
    topic       TEXT NOT NULL,
    partition   INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    payload     TEXT NOT NULL CHECK (json_valid(payload))
);

CREATE TABLE offsets (
    consumer    TEXT NOT NULL,
    topic       TEXT NOT NULL,
    partition   INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, topic, partition)
) WITHOUT ROWID;

CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    clean      INTEGER NOT NULL,
    taken_at   INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL           -- 0: released
) WITHOUT ROWID;

CREATE TABLE checkpoints (
    source     TEXT NOT NULL,
    stream     TEXT NOT NULL,
    partition  TEXT NOT NULL DEFAULT '',
    cursor     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    seen       INTEGER NOT NULL DEFAULT 0,
    seen_in    TEXT,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (source, stream, partition)
) WITHOUT ROWID;

CREATE TABLE checkpoint_history (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    source    TEXT NOT NULL,
    stream    TEXT NOT NULL,
    partition TEXT NOT NULL DEFAULT '',
    cursor    TEXT NOT NULL,
    fence     INTEGER NOT NULL,
    note      TEXT NOT NULL,
    saved_at  INTEGER NOT NULL
);
CREATE INDEX checkpoint_history_stream ON checkpoint_history (source, stream, id);

CREATE TABLE seen (
    source   TEXT NOT NULL,
    stream   TEXT NOT NULL,
    id       TEXT NOT NULL,
    version  TEXT NOT NULL,
    position INTEGER,
    sweep    INTEGER,
    dead     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, stream, id)
) WITHOUT ROWID;
CREATE INDEX seen_position ON seen (source, stream, position) WHERE position IS NOT NULL;

CREATE TABLE oversized (
    event_id TEXT PRIMARY KEY,
    source   TEXT NOT NULL,
    stream   TEXT NOT NULL,
    headers  BLOB NOT NULL,
    payload  BLOB NOT NULL,
    kept_at  INTEGER NOT NULL
);

-- The event log. Its name is made up once: another file is another log.
CREATE TABLE log_identity (name TEXT NOT NULL);
INSERT INTO log_identity VALUES ('sqlite:' || lower(hex(randomblob(8))));

CREATE TABLE topics (
    id           INTEGER PRIMARY KEY,
    name         TEXT NOT NULL UNIQUE,
    partitions   INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    max_message  INTEGER NOT NULL
);

CREATE TABLE log (
    topic_id  INTEGER NOT NULL REFERENCES topics (id),
    partition INTEGER NOT NULL,
    "offset"  INTEGER NOT NULL,
    timestamp INTEGER NOT NULL,
    key       BLOB NOT NULL,
    headers   BLOB NOT NULL,              -- a MessagePack list of [name, value]
    value     BLOB NOT NULL,
    PRIMARY KEY (topic_id, partition, "offset")
);                                        -- with a rowid: rows of a kilobyte are appended 3 times as fast
