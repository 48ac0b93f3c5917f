-- Exits: devices through which sessions leave, by the consent of their owners; what each carried of
-- each lease, and what their owners earn. Counts are bytes, amounts micro-USD.

-- What leads to an exit is kept beside the sale: the canonical text of what the buyer wants ('' for a
-- session that leaves directly), and the owners' share of its price. Sessions of before this step may
-- be used through exits too, and pay the share that is the default.
ALTER TABLE bandwidth_sessions ADD COLUMN exit TEXT NOT NULL DEFAULT '';
ALTER TABLE bandwidth_sessions ADD COLUMN exit_share_percent BIGINT NOT NULL DEFAULT 60
    CONSTRAINT bandwidth_sessions_exit_share CHECK (
        exit_share_percent >= 0 AND exit_share_percent <= 100
    );

-- The part of a lease's use that left through exits: the sum of its rows in exit_usage, which triggers
-- keep. So the schema refuses exits more than the lease itself has used.
ALTER TABLE bandwidth_leases ADD COLUMN exit_bytes BIGINT NOT NULL DEFAULT 0
    CONSTRAINT bandwidth_leases_exits_within_use CHECK (
        exit_bytes >= 0 AND exit_bytes <= used_bytes
    );

-- A device whose owner has agreed that it is one. `ports` are those of targets, with commas between.
-- The place is where it last came from: country in lower case, '' and 0 for what is not known.
CREATE TABLE exits (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    terms_hash TEXT NOT NULL,
    consented_at BIGINT NOT NULL,
    revoked_at BIGINT,
    paused_at BIGINT,
    barred_at BIGINT,
    connections BIGINT NOT NULL,
    bytes_per_second BIGINT NOT NULL,
    bytes_per_day BIGINT NOT NULL,
    ports TEXT NOT NULL,
    min_price_per_gb BIGINT NOT NULL,
    country TEXT NOT NULL DEFAULT '',
    city TEXT NOT NULL DEFAULT '',
    asn BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT exits_limits CHECK (
        connections > 0 AND bytes_per_second >= 0 AND bytes_per_day >= 0 AND min_price_per_gb >= 0
    )
);
CREATE INDEX exits_by_user ON exits (user_id, device_id);

-- Who agreed to which text, and who took it back, for good.
CREATE TABLE exit_consents (
    id TEXT PRIMARY KEY,
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    event TEXT NOT NULL,
    terms_hash TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT exit_consents_known_event CHECK (event IN ('given', 'revoked', 'barred'))
);
CREATE INDEX exit_consents_by_device ON exit_consents (device_id, id);

-- What an exit carried under a lease, in all; written with the lease's own count. `earned` is its
-- owner's share of the price, rounded down, and is posted when the session is settled.
CREATE TABLE exit_usage (
    lease_id TEXT NOT NULL REFERENCES bandwidth_leases (id),
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    used_bytes BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    PRIMARY KEY (lease_id, device_id),
    CONSTRAINT exit_usage_amounts CHECK (used_bytes >= 0 AND earned >= 0)
);
CREATE INDEX exit_usage_by_session ON exit_usage (session_id, device_id);
CREATE INDEX exit_usage_by_device ON exit_usage (device_id, session_id);

-- The same by the day (since 1970, UTC) on which it was reported.
CREATE TABLE exit_days (
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    day BIGINT NOT NULL,
    used_bytes BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    PRIMARY KEY (device_id, day),
    CONSTRAINT exit_days_amounts CHECK (used_bytes >= 0 AND earned >= 0)
);

-- What an exit has earned of a session that is settled. It is posted to its owner's pending account,
-- and leaves that once: paid out to the owner, or reversed. What a barred exit has earned is not
-- posted, and counts as reversed from the beginning.
CREATE TABLE exit_earnings (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    user_id TEXT NOT NULL REFERENCES users (id),
    used_bytes BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    posted_at BIGINT,
    paid_at BIGINT,
    reversed_at BIGINT,
    PRIMARY KEY (session_id, device_id),
    CONSTRAINT exit_earnings_amounts CHECK (used_bytes > 0 AND amount > 0),
    CONSTRAINT exit_earnings_resolved_once CHECK (paid_at IS NULL OR reversed_at IS NULL),
    CONSTRAINT exit_earnings_posted_or_reversed CHECK (
        posted_at IS NOT NULL OR reversed_at IS NOT NULL
    )
);
CREATE INDEX exit_earnings_due ON exit_earnings (posted_at, user_id)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
CREATE INDEX exit_earnings_pending ON exit_earnings (user_id, posted_at, device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
CREATE INDEX exit_earnings_by_device ON exit_earnings (device_id)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
