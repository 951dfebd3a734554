-- How fast a source may be asked, shared by all who poll it: its next free slot, and until when the API asked to be left
-- alone.

CREATE TABLE ingest.rates (
    source       text PRIMARY KEY,
    holder       text NOT NULL DEFAULT '',                    -- who took slots last
    next_slot    timestamptz NOT NULL DEFAULT to_timestamp(0),
    taken_at     timestamptz NOT NULL DEFAULT to_timestamp(0),
    shared_at    timestamptz NOT NULL DEFAULT to_timestamp(0), -- when the holder changed last within a short while
    held_at      timestamptz NOT NULL DEFAULT to_timestamp(0), -- when the hold was asked for
    held_until   timestamptz NOT NULL DEFAULT to_timestamp(0),
    held_because text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
