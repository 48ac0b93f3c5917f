-- Where devices attach to a node as exits, and where the other nodes reach it ('' and 0: nowhere); and
-- the SHA-256 of the certificate that it shows there, in hexadecimal.

ALTER TABLE nodes ADD COLUMN exits_host TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN exits_port BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN exits_certificate TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN link_host TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN link_port BIGINT NOT NULL DEFAULT 0;

-- The exit of a label of a session, where several nodes must agree on it. `label` is a hash of it;
-- `until` is when its lifetime ends. A row is gone soon after that, or after its session has ended.
CREATE TABLE exit_bindings (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    label TEXT NOT NULL,
    device_id TEXT NOT NULL,
    country TEXT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (session_id, label)
);
CREATE INDEX exit_bindings_by_until ON exit_bindings (until);
