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
