-- Several daemons (nodes) on one database: which are alive, and which leases are theirs.
-- A lease has no node on SQLite, where there is one daemon, and none once it is closed. So the foreign
-- key makes sure that an open lease belongs to a node that is alive.

CREATE TABLE nodes (
    id TEXT PRIMARY KEY,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);

ALTER TABLE bandwidth_leases ADD COLUMN node_id TEXT REFERENCES nodes (id);
CREATE INDEX bandwidth_leases_by_node ON bandwidth_leases (node_id) WHERE node_id IS NOT NULL;

-- One meter of a node holds its lease of a session at a time.
DROP INDEX bandwidth_leases_open;
CREATE UNIQUE INDEX bandwidth_leases_open ON bandwidth_leases (session_id, COALESCE(node_id, ''))
    WHERE closed_at IS NULL;
