-- The house owes exits what it has posted for them and their buyers have not paid yet, and has an account
-- of what it keeps of jobs in review: its fee, or the whole price where that was paid in another currency
-- than the worker is. A user may have a pending account. SQLite cannot change a constraint: its text is
-- edited where the schema is kept, which leaves every row as it is ("Making Other Kinds Of Table Schema
-- Changes", sqlite.org/lang_altertable.html). RESET reads the schema anew.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(
        REPLACE(sql, 'IN (''available'', ''held'')', 'IN (''available'', ''held'', ''pending'')'),
        '(''deposits'', ''revenue'', ''rewards'')',
        '(''deposits'', ''revenue'', ''rewards'', ''exit_payable'', ''review'')'
    )
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:exit_payable:usd', 'exit_payable', 'usd'),
    ('house:review:usd', 'review', 'usd'), ('house:review:credit', 'review', 'credit');

-- Transfers never change, but for this step: it fills in the new columns of those that exist.

DROP TRIGGER transfers_never_updated;

UPDATE transfers SET
    kind = CASE
        WHEN business_key LIKE 'deposit:%' THEN 'deposit'
        WHEN business_key LIKE 'referral:%' THEN 'referral'
        WHEN business_key LIKE 'goodness:%' THEN 'reward'
        WHEN business_key LIKE '%:hold' THEN 'hold'
        WHEN business_key LIKE '%:capture' THEN 'capture'
        WHEN business_key LIKE '%:release' THEN 'release'
        WHEN business_key LIKE '%:payout' THEN 'payout'
        ELSE 'other'
    END,
    reference = CASE
        WHEN business_key LIKE 'deposit:%:usd'
            THEN SUBSTR(business_key, 9, LENGTH(business_key) - 12)
        WHEN business_key LIKE 'deposit:%:credit'
            THEN SUBSTR(business_key, 9, LENGTH(business_key) - 15)
        WHEN business_key LIKE 'referral:%' THEN 'referral'
        WHEN business_key LIKE 'goodness:%' THEN 'photo:' || SUBSTR(business_key, 10)
        WHEN business_key LIKE '%:hold' THEN SUBSTR(business_key, 1, LENGTH(business_key) - 5)
        WHEN business_key LIKE '%:payout' THEN SUBSTR(business_key, 1, LENGTH(business_key) - 7)
        WHEN business_key LIKE '%:capture' OR business_key LIKE '%:release'
            THEN SUBSTR(business_key, 1, LENGTH(business_key) - 8)
        ELSE business_key
    END;

CREATE TRIGGER transfers_never_updated BEFORE UPDATE ON transfers BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

-- For lists of one status, or one type, that read no other rows.
CREATE INDEX bandwidth_sessions_by_status ON bandwidth_sessions (user_id, status, id);
CREATE INDEX jobs_by_status ON jobs (user_id, status, id);
CREATE INDEX jobs_open_by_type ON jobs (job_type, status, id)
    WHERE status IN ('waiting', 'running');

-- These include the amount: wallets and the audit read the index alone.
DROP INDEX entries_by_debit;
DROP INDEX entries_by_credit;
CREATE INDEX entries_by_debit ON entries (debit_account, transfer_id, amount);
CREATE INDEX entries_by_credit ON entries (credit_account, transfer_id, amount);

-- What exits carried adds up to exit_bytes of the lease.

CREATE TRIGGER exit_usage_added AFTER INSERT ON exit_usage BEGIN
    UPDATE bandwidth_leases SET exit_bytes = exit_bytes + NEW.used_bytes WHERE id = NEW.lease_id;
END;

CREATE TRIGGER exit_usage_raised AFTER UPDATE ON exit_usage
WHEN NEW.used_bytes > OLD.used_bytes BEGIN
    UPDATE bandwidth_leases SET exit_bytes = exit_bytes + NEW.used_bytes - OLD.used_bytes
    WHERE id = NEW.lease_id;
END;

CREATE TRIGGER exit_usage_never_falls BEFORE UPDATE ON exit_usage
WHEN NEW.used_bytes < OLD.used_bytes OR NEW.lease_id <> OLD.lease_id
    OR NEW.device_id <> OLD.device_id OR NEW.session_id <> OLD.session_id BEGIN
    SELECT RAISE(ABORT, 'exit_usage_never_falls');
END;

CREATE TRIGGER exit_usage_never_deleted BEFORE DELETE ON exit_usage BEGIN
    SELECT RAISE(ABORT, 'exit_usage_never_falls');
END;

-- What was earned is resolved once, and what was agreed to is never rewritten.

CREATE TRIGGER exit_earnings_never_changed_after BEFORE UPDATE ON exit_earnings
WHEN OLD.paid_at IS NOT NULL OR OLD.reversed_at IS NOT NULL OR NEW.amount <> OLD.amount
    OR NEW.used_bytes <> OLD.used_bytes OR NEW.user_id <> OLD.user_id BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_earnings_never_deleted BEFORE DELETE ON exit_earnings BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_consents_never_updated BEFORE UPDATE ON exit_consents BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_consents_never_deleted BEFORE DELETE ON exit_consents BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

-- What was paid is never rewritten.

CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews
WHEN OLD.resolved_at IS NOT NULL OR NEW.earned <> OLD.earned OR NEW.price <> OLD.price
    OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_reviews_never_deleted BEFORE DELETE ON job_reviews BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_draws_never_changed BEFORE UPDATE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_draws_never_deleted BEFORE DELETE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
