-- Client addresses that open a session without a password, on one of the ports without passwords. A
-- slot is such a port's position in the settings, so that its number may change. Only active sessions
-- have rows.

CREATE TABLE session_addresses (
    address TEXT NOT NULL,
    slot BIGINT NOT NULL,
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    PRIMARY KEY (address, slot),
    CONSTRAINT session_addresses_slot CHECK (slot >= 0)
);
CREATE INDEX session_addresses_by_session ON session_addresses (session_id);
