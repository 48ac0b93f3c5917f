-- What was paid is never rewritten.

CREATE TRIGGER job_draws_never_changed BEFORE UPDATE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_draws_never_deleted BEFORE DELETE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
