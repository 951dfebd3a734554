-- How fast a source may be asked, shared by all who poll it: its next free slot, and until when the API asked to be left
-- alone. Times are seconds since 1970: slots may lie between two milliseconds.

CREATE TABLE rates (
    source       TEXT PRIMARY KEY,
    holder       TEXT NOT NULL DEFAULT '', -- who took slots last
    next_slot    REAL NOT NULL DEFAULT 0,
    taken_at     REAL NOT NULL DEFAULT 0,
    shared_at    REAL NOT NULL DEFAULT 0,  -- when the holder changed last within a short while
    held_at      REAL NOT NULL DEFAULT 0,  -- when the hold was asked for
    held_until   REAL NOT NULL DEFAULT 0,
    held_because TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
