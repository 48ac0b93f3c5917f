-- Programs on other machines that ask to be let in by somebody who is logged in here (RFC 8628).

CREATE TABLE device_codes (
    id TEXT PRIMARY KEY,
    device_hash TEXT NOT NULL,  -- SHA-256 of the code that the program asks with
    user_hash TEXT NOT NULL,  -- and of the code that a person types
    client_name TEXT NOT NULL,
    scopes TEXT NOT NULL,  -- with commas in between
    network TEXT NOT NULL,  -- where the program asks from
    status TEXT NOT NULL DEFAULT 'pending',
    user_id TEXT REFERENCES users (id),  -- who has answered
    interval_seconds BIGINT NOT NULL,
    next_poll_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    CONSTRAINT device_codes_by_device UNIQUE (device_hash),
    CONSTRAINT device_codes_by_user UNIQUE (user_hash),
    CONSTRAINT device_codes_status CHECK (status IN ('pending', 'approved', 'denied', 'redeemed')),
    CONSTRAINT device_codes_answered CHECK ((status = 'pending') = (user_id IS NULL))
);
CREATE INDEX device_codes_old ON device_codes (expires_at);
CREATE INDEX device_codes_approved ON device_codes (user_id) WHERE status = 'approved';
