-- Entries also carry the earned part of balances.

DROP TRIGGER entries_move_balances;
CREATE TRIGGER entries_move_balances AFTER INSERT ON entries BEGIN
    UPDATE accounts SET balance = balance - NEW.amount, earned = earned + MIN(NEW.earned, 0)
    WHERE id = NEW.debit_account;
    UPDATE accounts SET balance = balance + NEW.amount, earned = earned + MAX(NEW.earned, 0)
    WHERE id = NEW.credit_account;
END;

CREATE INDEX payouts_by_user ON payouts (user_id, id);

CREATE TRIGGER payouts_never_deleted BEFORE DELETE ON payouts BEGIN
    SELECT RAISE(ABORT, 'payouts_keep_their_terms');
END;
CREATE TRIGGER payouts_keep_their_terms BEFORE UPDATE ON payouts
WHEN OLD.id <> NEW.id OR OLD.user_id <> NEW.user_id OR OLD.method_id <> NEW.method_id
    OR OLD.currency <> NEW.currency OR OLD.amount <> NEW.amount OR OLD.rate <> NEW.rate
    OR OLD.usd <> NEW.usd OR OLD.fee <> NEW.fee
    OR OLD.fee_amount <> NEW.fee_amount
    OR (OLD.batch_id IS NOT NULL AND OLD.batch_id <> NEW.batch_id) BEGIN
    SELECT RAISE(ABORT, 'payouts_keep_their_terms');
END;
