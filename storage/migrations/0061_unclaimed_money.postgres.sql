-- The house's accounts of unclaimed money.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN (
        'deposits', 'revenue', 'rewards', 'exit_payable', 'review', 'corrections',
        'losses', 'fees', 'exchange', 'payouts', 'unclaimed'
    ))
);
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:unclaimed:usd', 'unclaimed', 'usd'),
    ('house:unclaimed:credit', 'unclaimed', 'credit');
