-- The ledger's triggers, as PostgreSQL writes them.

CREATE FUNCTION move_balances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts SET balance = balance - NEW.amount WHERE id = NEW.debit_account;
    UPDATE accounts SET balance = balance + NEW.amount WHERE id = NEW.credit_account;
    RETURN NULL;
END
$$;

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ledger_is_append_only'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'ledger_is_append_only';
END
$$;

CREATE TRIGGER entries_move_balances AFTER INSERT ON entries
    FOR EACH ROW EXECUTE FUNCTION move_balances();
CREATE TRIGGER entries_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transfers_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON transfers
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER holds_never_changed_after BEFORE UPDATE ON holds
    FOR EACH ROW WHEN (OLD.resolved_at IS NOT NULL) EXECUTE FUNCTION refuse_change();
