-- What happened to whom: written in the transaction that causes it, kept for a while, never changed.
-- Identifiers are made within that transaction, so a later one may be committed first.
CREATE TABLE events (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,  -- a reference would lock the user's row
    type TEXT NOT NULL,
    subject_id TEXT,  -- what it is about: a session, a job, a device
    data TEXT NOT NULL,  -- JSON, as its type says (market/events.py)
    created_at BIGINT NOT NULL
);
CREATE INDEX events_by_user ON events (user_id, id);

-- Whether its buyer was told that a session is nearly used up.
ALTER TABLE bandwidth_sessions ADD COLUMN is_low BIGINT NOT NULL DEFAULT 0;

-- Whether its owner was told last that a device is there.
ALTER TABLE devices ADD COLUMN is_present BIGINT NOT NULL DEFAULT 0;
-- Not over the time of the last heartbeat: each of them would have to change the index.
CREATE INDEX devices_present ON devices (is_present, id) WHERE is_present = 1;

-- Networks that a user has logged in from, as digests; only the latest few are kept.
CREATE TABLE login_networks (
    user_id TEXT NOT NULL,
    network_hash TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, network_hash)
);
