-- The house's accounts of payments and payouts. SQLite cannot change a constraint: its text is edited
-- where the schema is kept, as step 46 does.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(sql, '''review'', ''corrections'')', '''review'', ''corrections'', ''losses'', ''fees'', ''exchange'', ''payouts'')')
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:losses:usd', 'losses', 'usd'),
    ('house:fees:usd', 'fees', 'usd'),
    ('house:payouts:usd', 'payouts', 'usd'),
    ('house:exchange:usd', 'exchange', 'usd'),
    ('house:exchange:credit', 'exchange', 'credit');
