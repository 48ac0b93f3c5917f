-- Several daemons on one database: which of them live, and whose leases are whose.
-- A lease of the one daemon on an SQLite database names no node, nor does one that is closed: so an
-- open lease belongs to a node that lives, and the database sees to it.

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
