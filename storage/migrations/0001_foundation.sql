-- Accounts, the ledger, and bandwidth sold by the byte.
-- Identifiers are lower-case UUIDs, times are UTC seconds, amounts are micro-units of the currency.

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    username TEXT NOT NULL,
    username_key TEXT NOT NULL UNIQUE,
    email TEXT NOT NULL,
    email_key TEXT NOT NULL UNIQUE,
    password_hash TEXT NOT NULL,
    email_verified_at BIGINT,
    created_at BIGINT NOT NULL
);

CREATE TABLE login_sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX login_sessions_by_user ON login_sessions (user_id);

CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    user_id TEXT REFERENCES users (id),
    kind TEXT NOT NULL,
    currency TEXT NOT NULL,
    balance BIGINT NOT NULL DEFAULT 0,
    UNIQUE (id, currency),
    CONSTRAINT accounts_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT accounts_known_kind CHECK (
        (user_id IS NOT NULL AND kind IN ('available', 'held'))
        OR (user_id IS NULL AND kind IN ('deposits', 'revenue', 'rewards'))
    ),
    CONSTRAINT accounts_never_negative CHECK (user_id IS NULL OR balance >= 0),
    CONSTRAINT accounts_within_bounds CHECK (
        balance >= -1000000000000000000 AND balance <= 1000000000000000000
    )
);
CREATE INDEX accounts_by_user ON accounts (user_id);

INSERT INTO accounts (id, kind, currency) VALUES
    ('house:deposits:usd', 'deposits', 'usd'),
    ('house:revenue:usd', 'revenue', 'usd'),
    ('house:rewards:usd', 'rewards', 'usd'),
    ('house:deposits:credit', 'deposits', 'credit'),
    ('house:revenue:credit', 'revenue', 'credit'),
    ('house:rewards:credit', 'rewards', 'credit');

CREATE TABLE transfers (
    id TEXT PRIMARY KEY,
    business_key TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

-- One row is a debit and its credit, so that no transfer can be out of balance. A trigger carries it
-- to both accounts; another refuses to change or delete it.
CREATE TABLE entries (
    transfer_id TEXT NOT NULL REFERENCES transfers (id),
    line BIGINT NOT NULL,
    currency TEXT NOT NULL,
    debit_account TEXT NOT NULL,
    credit_account TEXT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (transfer_id, line),
    FOREIGN KEY (debit_account, currency) REFERENCES accounts (id, currency),
    FOREIGN KEY (credit_account, currency) REFERENCES accounts (id, currency),
    CONSTRAINT entries_between_two CHECK (debit_account <> credit_account),
    CONSTRAINT entries_whole_and_positive CHECK (
        amount > 0 AND amount <= 1000000000000000000 AND amount = CAST(amount AS BIGINT)
    )
);
CREATE INDEX entries_by_debit ON entries (debit_account);
CREATE INDEX entries_by_credit ON entries (credit_account);

CREATE TABLE holds (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    currency TEXT NOT NULL,
    amount BIGINT NOT NULL,
    captured BIGINT,
    created_at BIGINT NOT NULL,
    resolved_at BIGINT,
    CONSTRAINT holds_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT holds_captured_within CHECK (
        amount >= 0 AND (captured IS NULL OR (captured >= 0 AND captured <= amount))
    ),
    CONSTRAINT holds_resolved_once CHECK ((captured IS NULL) = (resolved_at IS NULL))
);
CREATE INDEX holds_open ON holds (user_id, currency) WHERE resolved_at IS NULL;

CREATE TABLE bandwidth_sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    username TEXT NOT NULL UNIQUE,
    password_hash TEXT NOT NULL,
    quota_bytes BIGINT NOT NULL,
    bytes_used BIGINT NOT NULL DEFAULT 0,
    bytes_leased BIGINT NOT NULL DEFAULT 0,
    price_per_gb BIGINT NOT NULL,
    status TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    CONSTRAINT bandwidth_sessions_known_status CHECK (
        status IN ('active', 'ended', 'exhausted', 'expired')
    ),
    CONSTRAINT bandwidth_sessions_within_quota CHECK (
        quota_bytes > 0 AND bytes_used >= 0 AND bytes_leased >= 0
        AND bytes_used + bytes_leased <= quota_bytes
    ),
    CONSTRAINT bandwidth_sessions_price CHECK (price_per_gb >= 0)
);
CREATE INDEX bandwidth_sessions_by_user ON bandwidth_sessions (user_id, id);
CREATE INDEX bandwidth_sessions_to_expire ON bandwidth_sessions (expires_at) WHERE status = 'active';

CREATE TABLE bandwidth_leases (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    granted_bytes BIGINT NOT NULL,
    used_bytes BIGINT NOT NULL DEFAULT 0,
    closed_at BIGINT,
    CONSTRAINT bandwidth_leases_within_grant CHECK (
        used_bytes >= 0 AND used_bytes <= granted_bytes
    )
);
-- One meter holds the lease of a session at a time.
CREATE UNIQUE INDEX bandwidth_leases_open ON bandwidth_leases (session_id) WHERE closed_at IS NULL;
CREATE INDEX bandwidth_leases_by_session ON bandwidth_leases (session_id);
