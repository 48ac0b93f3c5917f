-- What was paid is never rewritten.

CREATE TRIGGER job_draws_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON job_draws
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE job_reviews ADD COLUMN is_draw BIGINT NOT NULL DEFAULT 0;
ALTER TABLE job_reviews DROP CONSTRAINT job_reviews_pkey;
ALTER TABLE job_reviews ADD PRIMARY KEY (job_id, attempt);
