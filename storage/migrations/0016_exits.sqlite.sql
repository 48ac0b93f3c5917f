-- A user may have a pending account. SQLite cannot change a constraint: its text is edited where the
-- schema is kept, which leaves every row as it is ("Making Other Kinds Of Table Schema Changes",
-- sqlite.org/lang_altertable.html). RESET reads the schema anew.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(sql, 'IN (''available'', ''held'')', 'IN (''available'', ''held'', ''pending'')')
WHERE type = 'table' AND name = 'accounts';
PRAGMA writable_schema = RESET;

-- What exits carried adds up to exit_bytes of the lease.

CREATE TRIGGER exit_usage_added AFTER INSERT ON exit_usage BEGIN
    UPDATE bandwidth_leases SET exit_bytes = exit_bytes + NEW.used_bytes WHERE id = NEW.lease_id;
END;

CREATE TRIGGER exit_usage_raised AFTER UPDATE ON exit_usage
WHEN NEW.used_bytes > OLD.used_bytes BEGIN
    UPDATE bandwidth_leases SET exit_bytes = exit_bytes + NEW.used_bytes - OLD.used_bytes
    WHERE id = NEW.lease_id;
END;

CREATE TRIGGER exit_usage_never_falls BEFORE UPDATE ON exit_usage
WHEN NEW.used_bytes < OLD.used_bytes OR NEW.lease_id <> OLD.lease_id
    OR NEW.device_id <> OLD.device_id OR NEW.session_id <> OLD.session_id BEGIN
    SELECT RAISE(ABORT, 'exit_usage_never_falls');
END;

CREATE TRIGGER exit_usage_never_deleted BEFORE DELETE ON exit_usage BEGIN
    SELECT RAISE(ABORT, 'exit_usage_never_falls');
END;

-- What was earned is resolved once, and what was agreed to is never rewritten.

CREATE TRIGGER exit_earnings_never_changed_after BEFORE UPDATE ON exit_earnings
WHEN OLD.paid_at IS NOT NULL OR OLD.reversed_at IS NOT NULL OR NEW.amount <> OLD.amount
    OR NEW.used_bytes <> OLD.used_bytes OR NEW.user_id <> OLD.user_id BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_earnings_never_deleted BEFORE DELETE ON exit_earnings BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_consents_never_updated BEFORE UPDATE ON exit_consents BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;

CREATE TRIGGER exit_consents_never_deleted BEFORE DELETE ON exit_consents BEGIN
    SELECT RAISE(ABORT, 'exit_books_are_append_only');
END;
