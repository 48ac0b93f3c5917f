-- A payout changes its batch only for a part of it, before the provider has taken it.

DROP TRIGGER payouts_keep_their_terms ON payouts;
CREATE TRIGGER payouts_keep_their_terms BEFORE UPDATE ON payouts
    FOR EACH ROW WHEN (
        OLD.id <> NEW.id OR OLD.user_id <> NEW.user_id OR OLD.method_id <> NEW.method_id
        OR OLD.currency <> NEW.currency OR OLD.amount <> NEW.amount OR OLD.rate <> NEW.rate
        OR OLD.usd <> NEW.usd OR OLD.fee <> NEW.fee
        OR OLD.fee_amount <> NEW.fee_amount
        OR (OLD.batch_id IS NOT NULL AND NEW.batch_id IS NULL)
    ) EXECUTE FUNCTION refuse_payout_change();

CREATE FUNCTION refuse_other_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'sent' OR NEW.state <> 'sent' OR NOT EXISTS (
        SELECT 1 FROM payout_batches AS part JOIN payout_batches AS whole ON whole.id = part.parent_id
        WHERE part.id = NEW.batch_id AND whole.id = OLD.batch_id AND whole.outside_id IS NULL
    ) THEN
        RAISE EXCEPTION 'payouts_keep_their_terms'
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'payouts_keep_their_terms';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER payouts_keep_their_batch BEFORE UPDATE ON payouts
    FOR EACH ROW WHEN (OLD.batch_id <> NEW.batch_id) EXECUTE FUNCTION refuse_other_batch();
