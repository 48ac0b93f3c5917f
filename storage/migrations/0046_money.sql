-- Money that the staff moves, approvals by a second person, limits and the price of one user, and
-- disputes that are decided in part.

-- A request that waits for a second person. `payload` is what is done, as JSON; its hash shows that it
-- was not changed. An author is `staff:` and the identifier of a member, or `unix:` and the user of a
-- command on the machine. Only the last three columns change, once.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    action TEXT NOT NULL,
    business_key TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    currency TEXT NOT NULL,
    amount BIGINT NOT NULL,
    payload TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    asked_by TEXT NOT NULL,
    log_number BIGINT NOT NULL,
    asked_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    decided_by TEXT,
    decided_at BIGINT,
    decision TEXT,
    CONSTRAINT approvals_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT approvals_known_decision CHECK (decision IN ('approved', 'refused', 'expired')),
    CONSTRAINT approvals_decided_whole CHECK (
        (decision IS NULL) = (decided_at IS NULL)
        AND (decision IS NOT NULL OR decided_by IS NULL)
        AND (decision IS NULL OR (decision = 'expired') = (decided_by IS NULL))
    ),
    CONSTRAINT approvals_by_another CHECK (decision <> 'approved' OR decided_by <> asked_by)
);
CREATE UNIQUE INDEX approvals_open ON approvals (business_key) WHERE decision IS NULL;

-- Each amount that an act of the staff moved: what its receiver got, negative for money taken. `id` is
-- the transfer, or the decided job. Amounts without `approval_id` count towards the limit above which a
-- second person is needed. A refund names the deposit that it returns.
CREATE TABLE staff_money (
    business_key TEXT PRIMARY KEY,
    id TEXT NOT NULL,
    action TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    currency TEXT NOT NULL,
    amount BIGINT NOT NULL,
    payload_hash TEXT NOT NULL,
    author TEXT NOT NULL,
    approval_id TEXT UNIQUE REFERENCES approvals (id),
    deposit_id TEXT REFERENCES transfers (id),
    created_at BIGINT NOT NULL,
    CONSTRAINT staff_money_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT staff_money_refunds_name_deposits CHECK (
        (action = 'money.refund') = (deposit_id IS NOT NULL)
    ),
    CONSTRAINT staff_money_amounts CHECK (
        amount <> 0 AND (action <> 'money.refund' OR amount < 0)
    )
);
CREATE INDEX staff_money_by_author ON staff_money (author, currency, created_at);
CREATE INDEX staff_money_by_user ON staff_money (user_id, currency, created_at);
CREATE INDEX staff_money_by_deposit ON staff_money (deposit_id) WHERE deposit_id IS NOT NULL;

-- Limits and the price of one user, in the place of the service's: a column without a value changes
-- nothing. After `until` the row has no effect.
CREATE TABLE user_limits (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    sessions BIGINT,
    jobs BIGINT,
    devices BIGINT,
    price_percent BIGINT,
    until BIGINT,
    changed_at BIGINT NOT NULL,
    CONSTRAINT user_limits_bounds CHECK (
        sessions >= 0 AND jobs >= 0 AND devices >= 0
        AND price_percent >= 1 AND price_percent <= 1000
    )
);

-- A dispute may be decided in part: `refunded` of the price went back to the buyer, `withheld` of the
-- earnings to where they came from. Both are 0 but for such a decision.
ALTER TABLE job_reviews ADD COLUMN refunded BIGINT NOT NULL DEFAULT 0;
ALTER TABLE job_reviews ADD COLUMN withheld BIGINT NOT NULL DEFAULT 0;
-- For the history of a worker and of a buyer.
CREATE INDEX job_reviews_by_worker ON job_reviews (user_id, job_id) WHERE disputed_at IS NOT NULL;
CREATE INDEX job_reviews_by_buyer ON job_reviews (buyer_id, job_id) WHERE disputed_at IS NOT NULL;
