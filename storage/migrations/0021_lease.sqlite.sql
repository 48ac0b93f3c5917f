-- The house's account of what it keeps of jobs in review: its fee, or the whole price where that was
-- paid in another currency than the worker is. The text of the constraint is edited, as in step 16.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(sql, '''rewards'', ''exit_payable'')', '''rewards'', ''exit_payable'', ''review'')')
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:review:usd', 'review', 'usd'), ('house:review:credit', 'review', 'credit');

CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews
WHEN OLD.resolved_at IS NOT NULL OR NEW.earned <> OLD.earned OR NEW.price <> OLD.price
    OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_reviews_never_deleted BEFORE DELETE ON job_reviews BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
