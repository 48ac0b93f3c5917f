-- Secrets sent by e-mail: using one, once and before it expires, proves who reads the address.

CREATE TABLE mail_tokens (
    token_hash TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    purpose TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    CONSTRAINT mail_tokens_known_purpose CHECK (purpose IN ('verify', 'reset'))
);
CREATE INDEX mail_tokens_by_user ON mail_tokens (user_id, purpose);
