-- The log is append-only, its head only advances, and a text changes only by its erasure.

CREATE FUNCTION refuse_staff_log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'staff_log_is_append_only'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'staff_log_is_append_only';
END
$$;

CREATE FUNCTION refuse_text_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'texts_are_only_erased'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'texts_are_only_erased';
END
$$;

CREATE FUNCTION keep_an_operator() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM staff WHERE id <> OLD.id AND role = 'operator' AND locked_at IS NULL
    ) THEN
        RAISE EXCEPTION 'staff_keeps_an_operator'
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'staff_keeps_an_operator';
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION refuse_staff_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'staff_is_only_locked'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'staff_is_only_locked';
END
$$;

CREATE TRIGGER staff_log_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON staff_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_staff_log_change();
CREATE TRIGGER staff_log_head_advances BEFORE UPDATE ON staff_log_head
    FOR EACH ROW WHEN (NEW.id <> OLD.id OR NEW.number <> OLD.number + 1)
    EXECUTE FUNCTION refuse_staff_log_change();
CREATE TRIGGER staff_log_head_never_deleted BEFORE DELETE OR TRUNCATE ON staff_log_head
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_staff_log_change();
CREATE TRIGGER texts_only_erased BEFORE UPDATE ON texts
    FOR EACH ROW WHEN (
        NEW.erased_at IS NULL OR OLD.erased_at IS NOT NULL OR NEW.id <> OLD.id
        OR NEW.kind <> OLD.kind OR NEW.log_number <> OLD.log_number
        OR NEW.user_id IS DISTINCT FROM OLD.user_id OR NEW.created_at <> OLD.created_at
    ) EXECUTE FUNCTION refuse_text_change();
CREATE TRIGGER texts_never_deleted BEFORE DELETE OR TRUNCATE ON texts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_text_change();

-- An operator that is not locked remains.

CREATE TRIGGER staff_keeps_an_operator BEFORE UPDATE ON staff
    FOR EACH ROW WHEN (
        OLD.role = 'operator' AND OLD.locked_at IS NULL
        AND (NEW.role <> 'operator' OR NEW.locked_at IS NOT NULL)
    ) EXECUTE FUNCTION keep_an_operator();
CREATE TRIGGER staff_never_deleted BEFORE DELETE OR TRUNCATE ON staff
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_staff_deletion();

-- For the search of the staff. A range of texts is a prefix only where texts are in the order of their
-- bytes.

ALTER TABLE users
    ALTER COLUMN username_key TYPE TEXT COLLATE "C",
    ALTER COLUMN email_key TYPE TEXT COLLATE "C";
ALTER TABLE bandwidth_sessions ALTER COLUMN username TYPE TEXT COLLATE "C";
ALTER TABLE users ADD COLUMN email_domain TEXT
    GENERATED ALWAYS AS (SPLIT_PART(email_key, '@', 2)) STORED;
CREATE INDEX users_by_email_domain ON users (email_domain, id DESC NULLS LAST);
CREATE INDEX login_sessions_by_network ON login_sessions (network, id DESC NULLS LAST);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix, id DESC NULLS LAST);
CREATE INDEX api_keys_by_network ON api_keys (last_used_network, id DESC NULLS LAST)
    WHERE last_used_network IS NOT NULL;
CREATE INDEX texts_by_user ON texts (user_id, kind, id DESC NULLS LAST) WHERE user_id IS NOT NULL;

-- For lists of the log; their order is not the primary key's, which would be walked past other rows.

CREATE INDEX staff_log_by_user ON staff_log (user_id, number DESC NULLS LAST)
    WHERE user_id IS NOT NULL;
CREATE INDEX staff_log_by_staff ON staff_log (staff_id, number DESC NULLS LAST)
    WHERE staff_id IS NOT NULL;
CREATE INDEX staff_log_by_action ON staff_log (action, number DESC NULLS LAST);
