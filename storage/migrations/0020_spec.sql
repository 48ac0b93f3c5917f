-- What is to run, of jobs that say so: `payload` is JSON, with the names of its secrets, whose values
-- are sealed in `secrets` until the job is over. A job without a payload may still say what it needs:
-- `resources` is JSON as it was understood, `warnings` a JSON list of what was not. A job that is
-- manual is offered to no device by itself. `timeout_seconds` is how long the work may take, and
-- `review_hours` how long its buyer may look at the result, where that is not as usual.

CREATE TABLE job_specs (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    payload TEXT,
    secrets TEXT,
    resources TEXT NOT NULL DEFAULT '{}',
    warnings TEXT NOT NULL DEFAULT '[]',
    is_manual BIGINT NOT NULL DEFAULT 0,
    timeout_seconds BIGINT,
    review_hours BIGINT,
    CONSTRAINT job_specs_secrets_of_a_payload CHECK (secrets IS NULL OR payload IS NOT NULL),
    CONSTRAINT job_specs_manual_or_not CHECK (is_manual IN (0, 1)),
    CONSTRAINT job_specs_times CHECK (timeout_seconds > 0 AND review_hours >= 0)
);
