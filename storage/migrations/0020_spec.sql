-- What is to run, of jobs that say so: `payload` as JSON, without secrets; how long it may take, and
-- how long its buyer may look at the result, where that is not as usual.

CREATE TABLE job_specs (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    payload TEXT,
    timeout_seconds BIGINT,
    review_hours BIGINT
);
