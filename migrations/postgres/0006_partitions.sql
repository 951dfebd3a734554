-- The ids of one partition of a stream (the records of one parent) are forgotten by its own order.

ALTER TABLE ingest.seen ADD COLUMN partition text NOT NULL DEFAULT '';
CREATE INDEX seen_partition ON ingest.seen (source, stream, partition, position)
    WHERE partition <> '' AND position IS NOT NULL;
