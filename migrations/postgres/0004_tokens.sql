-- Secrets that their issuer replaces when they are used, sealed by the process that saved them.

CREATE TABLE ingest.tokens (
    name       text PRIMARY KEY,
    version    bigint NOT NULL,           -- grows with every save
    sealed     bytea NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
