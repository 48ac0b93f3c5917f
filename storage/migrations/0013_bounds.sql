-- Client addresses that a session names and that nobody has proved yet: they open nothing, and keep
-- nobody from the address. Active sessions alone have rows. Those of session_addresses are proved;
-- what stands there already stays, so that no session stops working at an upgrade.

CREATE TABLE pending_addresses (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    address TEXT NOT NULL,
    slot BIGINT NOT NULL,
    PRIMARY KEY (session_id, address),
    CONSTRAINT pending_addresses_slot CHECK (slot >= 0)
);

-- What a user has open is counted whenever they add to it.
CREATE INDEX bandwidth_sessions_active_by_user ON bandwidth_sessions (user_id)
    WHERE status = 'active';
