-- A payout changes its batch only for a part of it, before the provider has taken it.

DROP TRIGGER payouts_keep_their_terms;
CREATE TRIGGER payouts_keep_their_terms BEFORE UPDATE ON payouts
WHEN OLD.id <> NEW.id OR OLD.user_id <> NEW.user_id OR OLD.method_id <> NEW.method_id
    OR OLD.currency <> NEW.currency OR OLD.amount <> NEW.amount OR OLD.rate <> NEW.rate
    OR OLD.usd <> NEW.usd OR OLD.fee <> NEW.fee
    OR OLD.fee_amount <> NEW.fee_amount
    OR (OLD.batch_id IS NOT NULL AND NEW.batch_id IS NULL)
    OR (OLD.batch_id <> NEW.batch_id AND NOT EXISTS (
        SELECT 1 FROM payout_batches AS part JOIN payout_batches AS whole ON whole.id = part.parent_id
        WHERE part.id = NEW.batch_id AND whole.id = OLD.batch_id AND whole.outside_id IS NULL
            AND OLD.state = 'sent' AND NEW.state = 'sent'
    )) BEGIN
    SELECT RAISE(ABORT, 'payouts_keep_their_terms');
END;
