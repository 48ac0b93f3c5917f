-- A user may have a pending account.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN ('deposits', 'revenue', 'rewards'))
);

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
