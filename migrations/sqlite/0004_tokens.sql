-- Secrets that their issuer replaces when they are used, sealed by the process that saved them.

CREATE TABLE tokens (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,          -- grows with every save
    sealed     BLOB NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
