-- The house's accounts of unclaimed money. SQLite cannot change a constraint: its text is edited where
-- the schema is kept, as step 46 does.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(sql, '''exchange'', ''payouts'')', '''exchange'', ''payouts'', ''unclaimed'')')
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:unclaimed:usd', 'unclaimed', 'usd'),
    ('house:unclaimed:credit', 'unclaimed', 'credit');
