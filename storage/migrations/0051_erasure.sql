-- Closed and erased accounts, exports of their rows, and addresses that open no account again.

CREATE TABLE closures (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    state TEXT NOT NULL,
    waives BIGINT NOT NULL,  -- 1: the user gives up the money that is left
    closed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,  -- the earliest time of the erasure
    erased_at BIGINT,
    CONSTRAINT closures_known_state CHECK (state IN ('closed', 'taken_back', 'erased')),
    CONSTRAINT closures_waives CHECK (waives IN (0, 1)),
    CONSTRAINT closures_erased_whole CHECK ((state = 'erased') = (erased_at IS NOT NULL))
);
CREATE INDEX closures_by_state ON closures (state, due_at);

CREATE TABLE exports (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    asked_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    downloads BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT exports_downloads CHECK (downloads >= 0)
);
CREATE INDEX exports_of_user ON exports (user_id, asked_at);

CREATE TABLE barred_emails (
    email_hash TEXT PRIMARY KEY,  -- keyed: the database alone does not reveal the address
    until BIGINT NOT NULL
);

-- An erasure finds the rows of a user without a look at all of them.
CREATE INDEX device_codes_of_user ON device_codes (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX reputation_buyers_of_buyer ON reputation_buyers (buyer_id);
