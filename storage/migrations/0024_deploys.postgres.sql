-- What was paid is never rewritten.

CREATE TRIGGER job_draws_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON job_draws
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
