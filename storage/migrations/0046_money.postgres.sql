-- The house's account of corrections.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN (
        'deposits', 'revenue', 'rewards', 'exit_payable', 'review', 'corrections'
    ))
);
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:corrections:usd', 'corrections', 'usd'),
    ('house:corrections:credit', 'corrections', 'credit');

-- In the order of their lists, which is not the primary key's.
CREATE INDEX approvals_by_user ON approvals (user_id, id DESC NULLS LAST);
CREATE INDEX approvals_undecided ON approvals (id DESC NULLS LAST) WHERE decision IS NULL;

CREATE FUNCTION refuse_approval_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approvals_are_decided_once'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'approvals_are_decided_once';
END
$$;

CREATE FUNCTION refuse_staff_money_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'staff_money_is_append_only'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'staff_money_is_append_only';
END
$$;

CREATE TRIGGER approvals_decided_once BEFORE UPDATE ON approvals
    FOR EACH ROW WHEN (
        OLD.decision IS NOT NULL OR NEW.decision IS NULL OR NEW.id <> OLD.id
        OR NEW.action <> OLD.action OR NEW.business_key <> OLD.business_key
        OR NEW.user_id <> OLD.user_id OR NEW.currency <> OLD.currency OR NEW.amount <> OLD.amount
        OR NEW.payload <> OLD.payload OR NEW.payload_hash <> OLD.payload_hash
        OR NEW.asked_by <> OLD.asked_by OR NEW.log_number <> OLD.log_number
        OR NEW.asked_at <> OLD.asked_at OR NEW.expires_at <> OLD.expires_at
    ) EXECUTE FUNCTION refuse_approval_change();
CREATE TRIGGER approvals_never_deleted BEFORE DELETE OR TRUNCATE ON approvals
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_approval_change();
CREATE TRIGGER staff_money_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON staff_money
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_staff_money_change();
