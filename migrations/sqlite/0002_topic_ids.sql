-- An offset belongs to one topic, not to whatever has its name: one that is deleted and made anew has another id.

ALTER TABLE topics ADD COLUMN uid TEXT NOT NULL DEFAULT '';
UPDATE topics SET uid = lower(hex(randomblob(8)));

ALTER TABLE offsets RENAME TO offsets_by_name;
CREATE TABLE offsets (
    consumer    TEXT NOT NULL,
    topic       TEXT NOT NULL,
    topic_id    TEXT NOT NULL,            -- '': not known, the next reader adopts it
    partition   INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, topic, topic_id, partition)
) WITHOUT ROWID;
INSERT INTO offsets (consumer, topic, topic_id, partition, next_offset, updated_at)
    SELECT consumer, topic, '', partition, next_offset, updated_at FROM offsets_by_name;
DROP TABLE offsets_by_name;
