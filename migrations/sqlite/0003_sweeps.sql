-- A record that a sweep finds gone is deleted under its own key, and where pages may skip rows only at the second miss.

ALTER TABLE seen ADD COLUMN key TEXT;        -- where it is not the id
ALTER TABLE seen ADD COLUMN missed INTEGER;  -- the first sweep in a row that did not list it
