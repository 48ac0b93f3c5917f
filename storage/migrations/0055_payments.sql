-- Payments by a payment provider, the money of them that goes back, debts, and receipts.

-- An amount that a user pays through a provider, in micro-USD. `provider_id` is the provider's own
-- identifier, and NULL until the provider has answered; `charge_id` is the identifier under which the
-- provider reports disputes. At `next_look_at` the sweeper asks the provider; NULL ends that.
CREATE TABLE payments (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    provider TEXT NOT NULL,
    status TEXT NOT NULL,
    amount BIGINT NOT NULL,
    provider_id TEXT,
    charge_id TEXT,
    url TEXT NOT NULL DEFAULT '',
    doubt TEXT NOT NULL DEFAULT '',
    looked_at BIGINT NOT NULL DEFAULT 0,
    next_look_at BIGINT,
    created_at BIGINT NOT NULL,
    closed_at BIGINT,
    deposit_id TEXT UNIQUE REFERENCES transfers (id),
    CONSTRAINT payments_known_status CHECK (status IN ('open', 'paid', 'expired', 'failed', 'doubtful')),
    CONSTRAINT payments_positive CHECK (amount > 0),
    CONSTRAINT payments_closed CHECK ((status = 'open') = (closed_at IS NULL)),
    CONSTRAINT payments_paid_once CHECK ((status = 'paid') = (deposit_id IS NOT NULL))
);
CREATE UNIQUE INDEX payments_by_provider ON payments (provider, provider_id) WHERE provider_id IS NOT NULL;
CREATE INDEX payments_by_charge ON payments (provider, charge_id) WHERE charge_id IS NOT NULL;
CREATE INDEX payments_due ON payments (next_look_at) WHERE next_look_at IS NOT NULL;
CREATE INDEX payments_recent ON payments (user_id, created_at);

-- Money of a payment that goes back to its payer: a refund of the user (`refund`) or of the staff
-- (`staff`), a refund that was made at the provider (`outside`), a dispute of the bank (`dispute`).
-- `held` was taken from the user for it and waits in the hold `kind:id`; `taken` is what counts
-- against the deposit now.
CREATE TABLE payment_returns (
    id TEXT PRIMARY KEY,
    payment_id TEXT NOT NULL REFERENCES payments (id),
    deposit_id TEXT NOT NULL REFERENCES transfers (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    amount BIGINT NOT NULL,
    held BIGINT NOT NULL,
    taken BIGINT NOT NULL,
    provider_ref TEXT,
    created_at BIGINT NOT NULL,
    closed_at BIGINT,
    CONSTRAINT payment_returns_known_kind CHECK (kind IN ('refund', 'staff', 'outside', 'dispute')),
    CONSTRAINT payment_returns_known_status CHECK (status IN ('pending', 'done', 'void')),
    CONSTRAINT payment_returns_amounts CHECK (
        amount > 0 AND held BETWEEN 0 AND amount AND taken BETWEEN -amount AND held
    ),
    CONSTRAINT payment_returns_closed CHECK ((status = 'pending') = (closed_at IS NULL))
);
CREATE UNIQUE INDEX payment_returns_by_ref ON payment_returns (payment_id, provider_ref)
    WHERE provider_ref IS NOT NULL;
CREATE INDEX payment_returns_by_payment ON payment_returns (payment_id, id);
CREATE INDEX payment_returns_by_deposit ON payment_returns (deposit_id);
CREATE INDEX payment_returns_by_user ON payment_returns (user_id, deposit_id);
CREATE INDEX open_disputes ON payment_returns (user_id) WHERE kind = 'dispute' AND status = 'pending';

-- The part of a returned payment that its user had spent: the house has lost it, and the next deposits
-- of the user pay it back.
CREATE TABLE debts (
    id TEXT PRIMARY KEY REFERENCES payment_returns (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    amount BIGINT NOT NULL,
    paid BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    CONSTRAINT debts_paid_within CHECK (amount > 0 AND paid BETWEEN 0 AND amount)
);
CREATE INDEX debts_by_user ON debts (user_id, id);

-- A receipt of each payment, with a number without gaps; the texts are those of the day of the payment.
CREATE TABLE receipts (
    number BIGINT PRIMARY KEY,
    payment_id TEXT NOT NULL UNIQUE REFERENCES payments (id),
    issued_at BIGINT NOT NULL,
    seller TEXT NOT NULL,
    tax_name TEXT NOT NULL,
    tax_basis_points BIGINT NOT NULL,
    CONSTRAINT receipts_numbered CHECK (number > 0),
    CONSTRAINT receipts_taxed CHECK (tax_basis_points BETWEEN 0 AND 10000)
);
CREATE TABLE receipt_numbers (
    id TEXT PRIMARY KEY,
    latest BIGINT NOT NULL,
    CONSTRAINT receipt_numbers_is_one CHECK (id = 'receipts')
);
INSERT INTO receipt_numbers (id, latest) VALUES ('receipts', 0);
