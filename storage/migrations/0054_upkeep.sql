-- The first schema version whose program can run with a step; NULL: that of the step. An earlier program asks for it
-- when it meets a database that is newer than itself.
ALTER TABLE schema_versions ADD COLUMN readable_from BIGINT;

-- The newest backup of everything that has a schema version: an earlier program names it when it refuses the database.
CREATE TABLE schema_backups (
    version BIGINT PRIMARY KEY,
    place TEXT NOT NULL,
    at BIGINT NOT NULL
);

-- Each use of the operators' way in at the machine. Another operator than the rescued one acknowledges it, once.
CREATE TABLE staff_rescues (
    id TEXT PRIMARY KEY,
    staff_id TEXT NOT NULL REFERENCES staff (id),
    at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    acknowledged_at BIGINT,
    acknowledged_by TEXT REFERENCES staff (id),
    CONSTRAINT staff_rescues_acknowledged CHECK ((acknowledged_at IS NULL) = (acknowledged_by IS NULL)),
    CONSTRAINT staff_rescues_by_another CHECK (acknowledged_by IS NULL OR acknowledged_by <> staff_id)
);
CREATE INDEX staff_rescues_open ON staff_rescues (at, id) WHERE acknowledged_at IS NULL;

-- The daily summary has the sums of one day.
CREATE INDEX staff_money_by_time ON staff_money (created_at);
