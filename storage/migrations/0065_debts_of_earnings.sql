-- Earned money that was paid out, and taken back afterwards: `amount` micro-units were not there any
-- more, and later earnings of the user pay them first. The house has lost them until then.
CREATE TABLE earning_debts (
    id TEXT PRIMARY KEY REFERENCES transfers (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    currency TEXT NOT NULL,
    amount BIGINT NOT NULL,
    paid BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    CONSTRAINT earning_debts_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT earning_debts_paid_within CHECK (amount > 0 AND paid BETWEEN 0 AND amount)
);
CREATE INDEX earning_debts_by_user ON earning_debts (user_id, currency, id);
CREATE INDEX earning_debts_open ON earning_debts (user_id, currency) WHERE paid < amount;
INSERT INTO accounts (id, kind, currency) VALUES ('house:losses:credit', 'losses', 'credit');
