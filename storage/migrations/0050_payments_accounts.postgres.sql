-- The house's accounts of payments and payouts.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN (
        'deposits', 'revenue', 'rewards', 'exit_payable', 'review', 'corrections',
        'losses', 'fees', 'exchange', 'payouts'
    ))
);
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:losses:usd', 'losses', 'usd'),
    ('house:fees:usd', 'fees', 'usd'),
    ('house:payouts:usd', 'payouts', 'usd'),
    ('house:exchange:usd', 'exchange', 'usd'),
    ('house:exchange:credit', 'exchange', 'credit');
