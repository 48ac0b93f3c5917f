-- The earnings of exits are posted every hour while their sessions go on, out of what the house owes
-- for them; a session that is settled pays the house back. So a session and a device have several
-- earnings, which `number` counts from 0.

-- The house owes exits what it has posted for them and their buyers have not paid yet. SQLite cannot
-- change a constraint: its text is edited, as in step 16.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(
        sql, '(''deposits'', ''revenue'', ''rewards'')',
        '(''deposits'', ''revenue'', ''rewards'', ''exit_payable'')'
    )
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES ('house:exit_payable:usd', 'exit_payable', 'usd');

-- Nor can it change a primary key: the rows move to a new table, and take its name.
CREATE TABLE exit_earnings_numbered (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    number BIGINT NOT NULL DEFAULT 0,
    user_id TEXT NOT NULL REFERENCES users (id),
    used_bytes BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    posted_at BIGINT,
    paid_at BIGINT,
    reversed_at BIGINT,
    PRIMARY KEY (session_id, device_id, number),
    CONSTRAINT exit_earnings_amounts CHECK (used_bytes > 0 AND amount > 0),
    CONSTRAINT exit_earnings_resolved_once CHECK (paid_at IS NULL OR reversed_at IS NULL),
    CONSTRAINT exit_earnings_posted_or_reversed CHECK (
        posted_at IS NOT NULL OR reversed_at IS NOT NULL
    )
);
INSERT INTO exit_earnings_numbered
    (session_id, device_id, number, user_id, used_bytes, amount, posted_at, paid_at, reversed_at)
SELECT session_id, device_id, 0, user_id, used_bytes, amount, posted_at, paid_at, reversed_at
FROM exit_earnings;
DROP TABLE exit_earnings;
ALTER TABLE exit_earnings_numbered RENAME TO exit_earnings;

CREATE INDEX exit_earnings_due ON exit_earnings (posted_at, user_id)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
CREATE INDEX exit_earnings_pending ON exit_earnings (user_id, posted_at, device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
CREATE INDEX exit_earnings_by_device ON exit_earnings (device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
-- What was taken back, by device and time.
CREATE INDEX exit_earnings_reversed ON exit_earnings (device_id, reversed_at, amount)
    WHERE reversed_at IS NOT NULL;

CREATE TRIGGER exit_earnings_never_changed_after BEFORE UPDATE ON exit_earnings
WHEN OLD.paid_at IS NOT NULL OR OLD.reversed_at IS NOT NULL OR NEW.amount <> OLD.amount
    OR NEW.used_bytes <> OLD.used_bytes OR NEW.user_id <> OLD.user_id BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_earnings_never_deleted BEFORE DELETE ON exit_earnings BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;
