-- For lists of tickets, and for the history of one. A ticket is never deleted.

CREATE INDEX tickets_open ON tickets (due_at, number) WHERE closed_at IS NULL;
CREATE INDEX tickets_by_state ON tickets (state, number);
CREATE INDEX tickets_by_user ON tickets (user_id, number) WHERE user_id IS NOT NULL;
CREATE INDEX staff_log_by_subject ON staff_log (subject_kind, subject_id, number);

CREATE TRIGGER tickets_never_deleted BEFORE DELETE ON tickets BEGIN
    SELECT RAISE(ABORT, 'tickets_are_only_closed');
END;
