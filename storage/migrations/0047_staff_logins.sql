-- Logins and keys of the staff, the attempts to log in, and the answers to repeated requests.

-- A login of a member. It ends after eight hours (`expires_at`), after half an hour without a request
-- (`seen_at`), or with `ended_at`.
CREATE TABLE staff_logins (
    id TEXT PRIMARY KEY,
    staff_id TEXT NOT NULL REFERENCES staff (id),
    network TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX staff_logins_by_staff ON staff_logins (staff_id, ended_at);
CREATE INDEX staff_logins_by_age ON staff_logins (expires_at);

-- Attempts to prove a password and a code. `account` is the identifier of the member; for an address
-- without a member it is a keyed hash of the address, because people type passwords into that field.
-- An attempt without `right_at` was wrong.
CREATE TABLE staff_attempts (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    staff_id TEXT REFERENCES staff (id),
    network TEXT NOT NULL,
    via TEXT NOT NULL,
    unix_user TEXT,
    created_at BIGINT NOT NULL,
    right_at BIGINT
);
CREATE INDEX staff_attempts_by_account ON staff_attempts (account, network, created_at);
CREATE INDEX staff_attempts_by_age ON staff_attempts (created_at);

-- Keys of members for programs; only their hashes are here. A key has addresses and an end.
CREATE TABLE staff_keys (
    id TEXT PRIMARY KEY,
    staff_id TEXT NOT NULL REFERENCES staff (id),
    name TEXT NOT NULL,
    key_hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    scopes TEXT NOT NULL,
    allow_ips TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT,
    CONSTRAINT staff_keys_have_addresses CHECK (allow_ips <> ''),
    CONSTRAINT staff_keys_have_scopes CHECK (scopes <> ''),
    CONSTRAINT staff_keys_end CHECK (expires_at - created_at BETWEEN 1 AND 7776000)
);
CREATE INDEX staff_keys_by_staff ON staff_keys (staff_id, revoked_at);

-- The first answers to requests of the staff with an Idempotency-Key, sealed.
CREATE TABLE staff_answers (
    staff_id TEXT NOT NULL REFERENCES staff (id),
    idempotency_key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    sealed_answer TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (staff_id, idempotency_key)
);
CREATE INDEX staff_answers_by_age ON staff_answers (created_at);
