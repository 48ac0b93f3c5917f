-- Transfers never change; this once they are told apart.

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

-- Lists that show one status, or one type, without walking past the others.
CREATE INDEX bandwidth_sessions_by_status ON bandwidth_sessions (user_id, status, id);
CREATE INDEX jobs_by_status ON jobs (user_id, status, id);
CREATE INDEX jobs_open_by_type ON jobs (job_type, status, id)
    WHERE status IN ('waiting', 'running');

-- What moved in an account is read from these alone, by wallets and by the audit.
DROP INDEX entries_by_debit;
DROP INDEX entries_by_credit;
CREATE INDEX entries_by_debit ON entries (debit_account, transfer_id, amount);
CREATE INDEX entries_by_credit ON entries (credit_account, transfer_id, amount);
