-- A record that a sweep finds gone is deleted under its own key, and where pages may skip rows only at the second miss.

ALTER TABLE ingest.seen
    ADD COLUMN key    text,    -- where it is not the id
    ADD COLUMN missed bigint;  -- the first sweep in a row that did not list it
