-- The log is append-only, its head only advances, and a text changes only by its erasure.

CREATE TRIGGER staff_log_never_updated BEFORE UPDATE ON staff_log BEGIN
    SELECT RAISE(ABORT, 'staff_log_is_append_only');
END;

CREATE TRIGGER staff_log_never_deleted BEFORE DELETE ON staff_log BEGIN
    SELECT RAISE(ABORT, 'staff_log_is_append_only');
END;

CREATE TRIGGER staff_log_head_advances BEFORE UPDATE ON staff_log_head
WHEN NEW.id <> OLD.id OR NEW.number <> OLD.number + 1 BEGIN
    SELECT RAISE(ABORT, 'staff_log_is_append_only');
END;

CREATE TRIGGER staff_log_head_never_deleted BEFORE DELETE ON staff_log_head BEGIN
    SELECT RAISE(ABORT, 'staff_log_is_append_only');
END;

CREATE TRIGGER texts_only_erased BEFORE UPDATE ON texts
WHEN NEW.erased_at IS NULL OR OLD.erased_at IS NOT NULL OR NEW.id <> OLD.id OR NEW.kind <> OLD.kind
    OR NEW.log_number <> OLD.log_number OR NEW.user_id IS NOT OLD.user_id
    OR NEW.created_at <> OLD.created_at BEGIN
    SELECT RAISE(ABORT, 'texts_are_only_erased');
END;

CREATE TRIGGER texts_never_deleted BEFORE DELETE ON texts BEGIN
    SELECT RAISE(ABORT, 'texts_are_only_erased');
END;

-- An operator that is not locked remains.

CREATE TRIGGER staff_keeps_an_operator BEFORE UPDATE ON staff
WHEN OLD.role = 'operator' AND OLD.locked_at IS NULL
    AND (NEW.role <> 'operator' OR NEW.locked_at IS NOT NULL)
    AND NOT EXISTS (
        SELECT 1 FROM staff WHERE id <> OLD.id AND role = 'operator' AND locked_at IS NULL
    ) BEGIN
    SELECT RAISE(ABORT, 'staff_keeps_an_operator');
END;

CREATE TRIGGER staff_never_deleted BEFORE DELETE ON staff BEGIN
    SELECT RAISE(ABORT, 'staff_is_only_locked');
END;

-- For the search of the staff.

ALTER TABLE users ADD COLUMN email_domain TEXT
    GENERATED ALWAYS AS (SUBSTR(email_key, INSTR(email_key, '@') + 1)) VIRTUAL;
CREATE INDEX users_by_email_domain ON users (email_domain, id);
CREATE INDEX login_sessions_by_network ON login_sessions (network, id);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix, id);
CREATE INDEX api_keys_by_network ON api_keys (last_used_network, id)
    WHERE last_used_network IS NOT NULL;
CREATE INDEX texts_by_user ON texts (user_id, kind, id) WHERE user_id IS NOT NULL;

-- For lists of the log.

CREATE INDEX staff_log_by_user ON staff_log (user_id, number) WHERE user_id IS NOT NULL;
CREATE INDEX staff_log_by_staff ON staff_log (staff_id, number) WHERE staff_id IS NOT NULL;
CREATE INDEX staff_log_by_action ON staff_log (action, number);
