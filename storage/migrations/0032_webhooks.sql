-- Where users want to be told of events by HTTP, what is sent there, and each attempt to do so.

CREATE TABLE webhook_endpoints (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    url TEXT NOT NULL,
    types TEXT NOT NULL,  -- with commas in between; * is every type
    description TEXT NOT NULL,
    sealed_secret TEXT NOT NULL,
    -- After a roll the one before signs, too, for a while.
    sealed_old_secret TEXT,
    old_until BIGINT,
    created_at BIGINT NOT NULL,
    failing_since BIGINT,  -- the first failure after the last success
    disabled_at BIGINT,
    disabled_reason TEXT,
    CONSTRAINT webhook_endpoints_old CHECK ((sealed_old_secret IS NULL) = (old_until IS NULL)),
    CONSTRAINT webhook_endpoints_off CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
);
CREATE INDEX webhook_endpoints_by_user ON webhook_endpoints (user_id, id);

-- Without references: these would lock rows of others in every transaction that causes an event.
CREATE TABLE webhook_deliveries (
    id TEXT PRIMARY KEY,
    endpoint_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    tries BIGINT NOT NULL DEFAULT 0,  -- those since it was asked for last: how far the schedule is
    next_at BIGINT NOT NULL,
    last_status BIGINT,
    last_error TEXT,
    last_ms BIGINT,
    created_at BIGINT NOT NULL,
    CONSTRAINT webhook_deliveries_once UNIQUE (endpoint_id, event_id),
    CONSTRAINT webhook_deliveries_status CHECK (status IN ('pending', 'delivered', 'failed'))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at, id) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (endpoint_id, next_at, id)
    WHERE status = 'pending';
CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (endpoint_id, id);

CREATE TABLE webhook_attempts (
    delivery_id TEXT NOT NULL REFERENCES webhook_deliveries (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    status BIGINT,
    error TEXT NOT NULL,  -- '' of a success
    ms BIGINT NOT NULL,
    answer TEXT NOT NULL,  -- how the answer began
    PRIMARY KEY (delivery_id, number)
);
