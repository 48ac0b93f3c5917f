-- Earned money in wallets, and its payouts.

-- The part of a user's balance that was earned by work or bandwidth, and may be paid out. Earnings
-- raise it. What leaves the account takes other money first.
ALTER TABLE accounts ADD COLUMN earned BIGINT NOT NULL DEFAULT 0
    CONSTRAINT accounts_earned_within CHECK (
        earned >= 0 AND (earned = 0 OR (user_id IS NOT NULL AND earned <= balance))
    );

-- The change of that part by an entry: above 0 what the credited account receives, below 0 what the
-- debited account gives. An account's part is the sum of its entries'.
ALTER TABLE entries ADD COLUMN earned BIGINT NOT NULL DEFAULT 0
    CONSTRAINT entries_earned_within CHECK (earned >= -amount AND earned <= amount);

-- For the audit: most entries are neither.
CREATE INDEX entries_earned_in ON entries (transfer_id, credit_account, earned) WHERE earned > 0;
CREATE INDEX entries_earned_out ON entries (transfer_id, debit_account, earned) WHERE earned < 0;

-- The earned part of the money in a hold. A release gives it back first.
ALTER TABLE holds ADD COLUMN earned BIGINT NOT NULL DEFAULT 0
    CONSTRAINT holds_earned_within CHECK (earned >= 0 AND earned <= amount);

CREATE INDEX holds_of_earned ON holds (user_id, currency) WHERE resolved_at IS NULL AND earned > 0;

-- All earnings of a user in a currency, spent or not, and the time of the first.
CREATE TABLE earned_totals (
    user_id TEXT NOT NULL REFERENCES users (id),
    currency TEXT NOT NULL,
    total BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, currency),
    CONSTRAINT earned_totals_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT earned_totals_positive CHECK (total > 0)
);

-- A place for payouts. `sealed` has its details, encrypted; `shown` is a mask of them.
CREATE TABLE payout_methods (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    kind TEXT NOT NULL,
    sealed TEXT NOT NULL,
    shown TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    usable_at BIGINT NOT NULL,
    removed_at BIGINT,
    CONSTRAINT payout_methods_known_kind CHECK (kind IN ('bank', 'paypal', 'manual', 'stripe'))
);
CREATE INDEX payout_methods_by_user ON payout_methods (user_id, id);

-- Payouts that were sent together. `sealed_content` is the written file, so that a second export has
-- the same bytes. Batches of a provider have none.
CREATE TABLE payout_batches (
    id TEXT PRIMARY KEY,
    format TEXT NOT NULL,
    payouts BIGINT NOT NULL,
    net_usd BIGINT NOT NULL,
    sealed_content TEXT,
    created_at BIGINT NOT NULL,
    outside_id TEXT,
    settled_at BIGINT,
    CONSTRAINT payout_batches_known_format CHECK (
        format IN ('csv', 'pain001.03', 'pain001.09', 'paypal', 'stripe')
    )
);
CREATE INDEX payout_batches_open ON payout_batches (format, id) WHERE settled_at IS NULL;

-- `amount` of the wallet's `currency` is worth `usd`, of which the house keeps `fee` and sends the
-- rest; `fee_amount` is the fee's part of `amount`. `rate` is the price of a credit in micro-USD, at
-- the request; 0 of USD.
CREATE TABLE payouts (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    method_id TEXT NOT NULL REFERENCES payout_methods (id),
    currency TEXT NOT NULL,
    amount BIGINT NOT NULL,
    rate BIGINT NOT NULL,
    usd BIGINT NOT NULL,
    fee BIGINT NOT NULL,
    fee_amount BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    requested_at BIGINT NOT NULL,
    decide_by BIGINT NOT NULL,
    decided_at BIGINT,
    sent_at BIGINT,
    ended_at BIGINT,
    batch_id TEXT REFERENCES payout_batches (id),
    is_returned BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT payouts_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT payouts_known_state CHECK (
        state IN ('requested', 'cancelled', 'approved', 'rejected', 'sent', 'paid', 'failed')
    ),
    CONSTRAINT payouts_amounts CHECK (
        amount > 0 AND fee >= 0 AND usd > fee AND rate >= 0
        AND fee_amount >= 0 AND fee_amount < amount
        AND (currency = 'credit' OR (rate = 0 AND usd = amount AND fee_amount = fee))
    ),
    CONSTRAINT payouts_sent_in_a_batch CHECK (
        (state IN ('sent', 'paid', 'failed')) = (batch_id IS NOT NULL)
        AND (batch_id IS NULL) = (sent_at IS NULL)
    ),
    CONSTRAINT payouts_ended_whole CHECK (
        (state IN ('cancelled', 'rejected', 'paid', 'failed')) = (ended_at IS NOT NULL)
    ),
    CONSTRAINT payouts_reasons CHECK ((state IN ('rejected', 'failed')) = (reason IS NOT NULL)),
    CONSTRAINT payouts_returned CHECK (is_returned = 0 OR (is_returned = 1 AND state = 'failed'))
);
CREATE INDEX payouts_by_state ON payouts (state, id);
CREATE INDEX payouts_by_batch ON payouts (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX payouts_of_method ON payouts (method_id) WHERE state IN ('requested', 'approved', 'sent');

-- Users whose identity the operator has checked outside of the service.
CREATE TABLE verified_users (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    verified_at BIGINT NOT NULL
);
