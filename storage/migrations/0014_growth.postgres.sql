-- Transfers never change, but for this step: it fills in the new columns of those that exist.

DROP TRIGGER transfers_never_changed ON transfers;

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

CREATE TRIGGER transfers_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON transfers
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- For lists of one status, or one type, that read no other rows. Their order (NULLS LAST) is not the
-- primary key's, or PostgreSQL might walk that instead, past all other users' rows.
CREATE INDEX bandwidth_sessions_by_status ON bandwidth_sessions (user_id, status, id DESC NULLS LAST);
CREATE INDEX jobs_by_status ON jobs (user_id, status, id DESC NULLS LAST);
CREATE INDEX jobs_open_by_type ON jobs (job_type, status, id DESC NULLS LAST)
    WHERE status IN ('waiting', 'running');

-- Those of entries include the amount: wallets and the audit read the index alone.
DROP INDEX bandwidth_sessions_by_user;
DROP INDEX jobs_by_user;
DROP INDEX jobs_open;
DROP INDEX jobs_by_device;
DROP INDEX devices_by_user;
DROP INDEX deploys_by_user;
DROP INDEX entries_by_debit;
DROP INDEX entries_by_credit;
CREATE INDEX bandwidth_sessions_by_user ON bandwidth_sessions (user_id, id DESC NULLS LAST);
CREATE INDEX jobs_by_user ON jobs (user_id, id DESC NULLS LAST);
CREATE INDEX jobs_open ON jobs (id DESC NULLS LAST) WHERE status IN ('waiting', 'running');
CREATE INDEX jobs_by_device ON jobs (device_id, id DESC NULLS LAST) WHERE status = 'running';
CREATE INDEX devices_by_user ON devices (user_id, id DESC NULLS LAST);
CREATE INDEX deploys_by_user ON deploys (user_id, id DESC NULLS LAST);
CREATE INDEX entries_by_debit ON entries
    (debit_account, transfer_id DESC NULLS LAST, amount);
CREATE INDEX entries_by_credit ON entries
    (credit_account, transfer_id DESC NULLS LAST, amount);
