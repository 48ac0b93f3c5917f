-- Secrets that went out by mail: each proves, once and for a while, that its bearer reads the mail.

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
