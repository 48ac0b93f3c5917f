-- For lists of tickets, and for the history of one. A ticket is never deleted.

CREATE INDEX tickets_open ON tickets (due_at, number) WHERE closed_at IS NULL;
CREATE INDEX tickets_by_state ON tickets (state, number DESC NULLS LAST);
CREATE INDEX tickets_by_user ON tickets (user_id, number DESC NULLS LAST) WHERE user_id IS NOT NULL;
CREATE INDEX staff_log_by_subject ON staff_log (subject_kind, subject_id, number DESC NULLS LAST);

CREATE FUNCTION refuse_ticket_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'tickets_are_only_closed'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'tickets_are_only_closed';
END
$$;

CREATE TRIGGER tickets_never_deleted BEFORE DELETE OR TRUNCATE ON tickets
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ticket_deletion();
