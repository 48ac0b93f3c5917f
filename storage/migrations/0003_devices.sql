-- Worker devices: each has one token, of which only the hash is kept, and what it last reported.

CREATE TABLE devices (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    token_hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    hostname TEXT NOT NULL,
    device_type TEXT NOT NULL,
    min_price_usd BIGINT,
    gpu_name TEXT NOT NULL DEFAULT '',
    cpu_cores BIGINT NOT NULL DEFAULT 0,
    ram_gb DOUBLE PRECISION NOT NULL DEFAULT 0,
    cpu_temp DOUBLE PRECISION,
    gpu_temp DOUBLE PRECISION,
    cpu_pct DOUBLE PRECISION,
    ram_pct DOUBLE PRECISION,
    created_at BIGINT NOT NULL,
    last_heartbeat_at BIGINT,
    offline_at BIGINT,
    revoked_at BIGINT,
    CONSTRAINT devices_known_type CHECK (device_type IN ('desktop', 'mini_pc', 'server', 'phone')),
    CONSTRAINT devices_price CHECK (min_price_usd IS NULL OR min_price_usd >= 0)
);
CREATE INDEX devices_by_user ON devices (user_id, id);
