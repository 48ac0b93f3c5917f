-- First answers to requests that carried an Idempotency-Key, sealed; kept for a day.

CREATE TABLE idempotency_keys (
    user_id TEXT NOT NULL REFERENCES users (id),
    idempotency_key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    sealed_answer TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, idempotency_key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
