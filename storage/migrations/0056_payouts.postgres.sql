-- Entries also carry the earned part of balances.

CREATE OR REPLACE FUNCTION move_balances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts SET balance = balance - NEW.amount, earned = earned + LEAST(NEW.earned, 0)
    WHERE id = NEW.debit_account;
    UPDATE accounts SET balance = balance + NEW.amount, earned = earned + GREATEST(NEW.earned, 0)
    WHERE id = NEW.credit_account;
    RETURN NULL;
END
$$;

-- In the order of their list, which is not the primary key's.
CREATE INDEX payouts_by_user ON payouts (user_id, id DESC NULLS LAST);

CREATE FUNCTION refuse_payout_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'payouts_keep_their_terms'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'payouts_keep_their_terms';
END
$$;
CREATE TRIGGER payouts_never_deleted BEFORE DELETE OR TRUNCATE ON payouts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_payout_change();
CREATE TRIGGER payouts_keep_their_terms BEFORE UPDATE ON payouts
    FOR EACH ROW WHEN (
        OLD.id <> NEW.id OR OLD.user_id <> NEW.user_id OR OLD.method_id <> NEW.method_id
        OR OLD.currency <> NEW.currency OR OLD.amount <> NEW.amount OR OLD.rate <> NEW.rate
        OR OLD.usd <> NEW.usd OR OLD.fee <> NEW.fee
        OR OLD.fee_amount <> NEW.fee_amount
        OR (OLD.batch_id IS NOT NULL AND OLD.batch_id IS DISTINCT FROM NEW.batch_id)
    ) EXECUTE FUNCTION refuse_payout_change();
