-- Keys that programs call the API with, in the place of their owner's login. Only digests are kept.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    key_hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,  -- how the key begins, so that its owner knows it again
    scopes TEXT NOT NULL,  -- with spaces in between, as are the networks that it may come from; '' is any
    allow_ips TEXT NOT NULL,
    limit_usd BIGINT,  -- micro-units that may be spent with it within each period; NULL is no limit
    limit_credit BIGINT,
    limit_period TEXT NOT NULL,
    purse_id TEXT NOT NULL,  -- what is spent counts here: the first key's of a line that was rolled
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT,
    last_used_network TEXT,
    is_expiry_told BIGINT NOT NULL DEFAULT 0,
    limit_told_at BIGINT NOT NULL DEFAULT -1,  -- the beginning of the period in which it was
    CONSTRAINT api_keys_limits CHECK (limit_usd >= 0 AND limit_credit >= 0),
    CONSTRAINT api_keys_period CHECK (limit_period IN ('day', 'month', 'lifetime'))
);
CREATE INDEX api_keys_by_user ON api_keys (user_id, id);
CREATE INDEX api_keys_expiring ON api_keys (expires_at)
    WHERE revoked_at IS NULL AND is_expiry_told = 0 AND expires_at IS NOT NULL;

-- What was spent with keys, in micro-units: written in the transaction of the hold.
CREATE TABLE key_spends (
    purse_id TEXT NOT NULL,
    currency TEXT NOT NULL,
    period TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    spent BIGINT NOT NULL,
    PRIMARY KEY (purse_id, currency, period, begins_at),
    CONSTRAINT key_spends_spent CHECK (spent >= 0)
);
