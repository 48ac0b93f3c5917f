-- The ledger's triggers, as SQLite writes them.

CREATE TRIGGER entries_move_balances AFTER INSERT ON entries BEGIN
    UPDATE accounts SET balance = balance - NEW.amount WHERE id = NEW.debit_account;
    UPDATE accounts SET balance = balance + NEW.amount WHERE id = NEW.credit_account;
END;

CREATE TRIGGER entries_never_updated BEFORE UPDATE ON entries BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER entries_never_deleted BEFORE DELETE ON entries BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER transfers_never_updated BEFORE UPDATE ON transfers BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER transfers_never_deleted BEFORE DELETE ON transfers BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER holds_never_changed_after BEFORE UPDATE ON holds WHEN OLD.resolved_at IS NOT NULL BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
