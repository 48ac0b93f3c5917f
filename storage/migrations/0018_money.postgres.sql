-- The earnings of exits are posted every hour while their sessions go on, out of what the house owes
-- for them; a session that is settled pays the house back. So a session and a device have several
-- earnings, which `number` counts from 0.

-- The house owes exits what it has posted for them and their buyers have not paid yet.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN ('deposits', 'revenue', 'rewards', 'exit_payable'))
);
INSERT INTO accounts (id, kind, currency) VALUES ('house:exit_payable:usd', 'exit_payable', 'usd');

ALTER TABLE exit_earnings ADD COLUMN number BIGINT NOT NULL DEFAULT 0;
ALTER TABLE exit_earnings DROP CONSTRAINT exit_earnings_pkey;
ALTER TABLE exit_earnings ADD PRIMARY KEY (session_id, device_id, number);

-- With the amount, for sums.
DROP INDEX exit_earnings_by_device;
CREATE INDEX exit_earnings_by_device ON exit_earnings (device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
-- What was taken back, by device and time.
CREATE INDEX exit_earnings_reversed ON exit_earnings (device_id, reversed_at, amount)
    WHERE reversed_at IS NOT NULL;
