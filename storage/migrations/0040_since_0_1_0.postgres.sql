-- The house owes exits what it has posted for them and their buyers have not paid yet, and has an account
-- of what it keeps of jobs in review: its fee, or the whole price where that was paid in another currency
-- than the worker is. A user may have a pending account.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN ('deposits', 'revenue', 'rewards', 'exit_payable', 'review'))
);
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:exit_payable:usd', 'exit_payable', 'usd'),
    ('house:review:usd', 'review', 'usd'), ('house:review:credit', 'review', 'credit');

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

-- What exits carried adds up to exit_bytes of the lease.

CREATE FUNCTION carry_exit_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE bandwidth_leases SET exit_bytes = exit_bytes + NEW.used_bytes
        - CASE WHEN TG_OP = 'UPDATE' THEN OLD.used_bytes ELSE 0 END
    WHERE id = NEW.lease_id;
    RETURN NULL;
END
$$;

CREATE FUNCTION refuse_exit_usage_fall() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'exit_usage_never_falls'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'exit_usage_never_falls';
END
$$;

CREATE FUNCTION refuse_exit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'exit_books_are_append_only'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'exit_books_are_append_only';
END
$$;

CREATE TRIGGER exit_usage_added AFTER INSERT ON exit_usage
    FOR EACH ROW EXECUTE FUNCTION carry_exit_usage();
CREATE TRIGGER exit_usage_raised AFTER UPDATE ON exit_usage
    FOR EACH ROW WHEN (NEW.used_bytes > OLD.used_bytes) EXECUTE FUNCTION carry_exit_usage();
CREATE TRIGGER exit_usage_never_falls BEFORE UPDATE ON exit_usage
    FOR EACH ROW WHEN (
        NEW.used_bytes < OLD.used_bytes OR NEW.lease_id <> OLD.lease_id
        OR NEW.device_id <> OLD.device_id OR NEW.session_id <> OLD.session_id
    ) EXECUTE FUNCTION refuse_exit_usage_fall();
CREATE TRIGGER exit_usage_never_deleted BEFORE DELETE OR TRUNCATE ON exit_usage
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_exit_usage_fall();

-- What was earned is resolved once, and what was agreed to is never rewritten.

CREATE TRIGGER exit_earnings_never_changed_after BEFORE UPDATE ON exit_earnings
    FOR EACH ROW WHEN (
        OLD.paid_at IS NOT NULL OR OLD.reversed_at IS NOT NULL OR NEW.amount <> OLD.amount
        OR NEW.used_bytes <> OLD.used_bytes OR NEW.user_id <> OLD.user_id
    ) EXECUTE FUNCTION refuse_exit_change();
CREATE TRIGGER exit_earnings_never_deleted BEFORE DELETE OR TRUNCATE ON exit_earnings
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_exit_change();
CREATE TRIGGER exit_consents_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON exit_consents
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_exit_change();

-- What was paid is never rewritten.

CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews FOR EACH ROW
    WHEN (OLD.resolved_at IS NOT NULL OR NEW.earned <> OLD.earned OR NEW.price <> OLD.price
        OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id)
    EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_reviews_never_deleted BEFORE DELETE ON job_reviews FOR EACH ROW
    EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_draws_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON job_draws
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
