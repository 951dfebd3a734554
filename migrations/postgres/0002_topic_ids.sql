-- An offset belongs to one topic, not to whatever has its name: one that is deleted and made anew has another id.

ALTER TABLE ingest.offsets ADD COLUMN topic_id text NOT NULL DEFAULT '';  -- '': not known, the next reader adopts it
ALTER TABLE ingest.offsets DROP CONSTRAINT offsets_pkey;
ALTER TABLE ingest.offsets ADD PRIMARY KEY (consumer, topic, topic_id, partition);
