-- Logs of attempts. Their bytes are files; a row says whose they are, and what they take on the disk
-- once the attempt is over and somebody has looked.

CREATE TABLE job_logs (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    kept_bytes BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt),
    CONSTRAINT job_logs_amounts CHECK (kept_bytes >= 0)
);
-- Those that nobody has looked at since their attempt ended are looked for again and again.
CREATE INDEX job_logs_open ON job_logs (began_at) WHERE ended_at IS NULL;
CREATE INDEX job_logs_by_age ON job_logs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX job_logs_by_user ON job_logs (user_id, ended_at) WHERE ended_at IS NOT NULL;

-- The sum of the above for each user, so that nobody's past has to be added up.
CREATE TABLE user_logs (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    kept_bytes BIGINT NOT NULL,
    CONSTRAINT user_logs_amounts CHECK (kept_bytes >= 0)
);
