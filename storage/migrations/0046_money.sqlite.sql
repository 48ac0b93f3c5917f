-- The house's account of corrections. SQLite cannot change a constraint: its text is edited where the
-- schema is kept, as step 40 does.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(sql, '''exit_payable'', ''review'')', '''exit_payable'', ''review'', ''corrections'')')
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:corrections:usd', 'corrections', 'usd'),
    ('house:corrections:credit', 'corrections', 'credit');

CREATE INDEX approvals_by_user ON approvals (user_id, id);
CREATE INDEX approvals_undecided ON approvals (id) WHERE decision IS NULL;

CREATE TRIGGER approvals_decided_once BEFORE UPDATE ON approvals
WHEN OLD.decision IS NOT NULL OR NEW.decision IS NULL OR NEW.id <> OLD.id OR NEW.action <> OLD.action
    OR NEW.business_key <> OLD.business_key OR NEW.user_id <> OLD.user_id
    OR NEW.currency <> OLD.currency OR NEW.amount <> OLD.amount OR NEW.payload <> OLD.payload
    OR NEW.payload_hash <> OLD.payload_hash OR NEW.asked_by <> OLD.asked_by
    OR NEW.log_number <> OLD.log_number OR NEW.asked_at <> OLD.asked_at
    OR NEW.expires_at <> OLD.expires_at BEGIN
    SELECT RAISE(ABORT, 'approvals_are_decided_once');
END;

CREATE TRIGGER approvals_never_deleted BEFORE DELETE ON approvals BEGIN
    SELECT RAISE(ABORT, 'approvals_are_decided_once');
END;

CREATE TRIGGER staff_money_never_updated BEFORE UPDATE ON staff_money BEGIN
    SELECT RAISE(ABORT, 'staff_money_is_append_only');
END;

CREATE TRIGGER staff_money_never_deleted BEFORE DELETE ON staff_money BEGIN
    SELECT RAISE(ABORT, 'staff_money_is_append_only');
END;
