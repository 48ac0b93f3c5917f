-- Jobs, and every attempt of a device at one. A job's price is held in its currency until it is over.

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    title TEXT NOT NULL,
    job_type TEXT NOT NULL,
    price_credit BIGINT NOT NULL,
    duration_hrs BIGINT NOT NULL,
    description TEXT NOT NULL,
    requirements TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    device_id TEXT REFERENCES devices (id),
    created_at BIGINT NOT NULL,
    accepted_at BIGINT,
    finished_at BIGINT,
    earned BIGINT NOT NULL DEFAULT 0,
    result TEXT,
    CONSTRAINT jobs_known_type CHECK (job_type IN ('docker', 'training', 'inference', 'script')),
    CONSTRAINT jobs_known_status CHECK (
        status IN ('waiting', 'running', 'completed', 'failed', 'cancelled')
    ),
    CONSTRAINT jobs_running_on_a_device CHECK (
        status <> 'running' OR (device_id IS NOT NULL AND accepted_at IS NOT NULL)
    ),
    CONSTRAINT jobs_amounts CHECK (price_credit >= 0 AND earned >= 0 AND duration_hrs > 0)
);
CREATE INDEX jobs_by_user ON jobs (user_id, id);
CREATE INDEX jobs_open ON jobs (id) WHERE status IN ('waiting', 'running');
CREATE INDEX jobs_running ON jobs (accepted_at) WHERE status = 'running';
CREATE INDEX jobs_earned ON jobs (device_id, finished_at) WHERE earned > 0;

CREATE TABLE job_attempts (
    job_id TEXT NOT NULL REFERENCES jobs (id),
    attempt BIGINT NOT NULL,
    device_id TEXT NOT NULL REFERENCES devices (id),
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    outcome TEXT,
    PRIMARY KEY (job_id, attempt)
);
CREATE INDEX job_attempts_by_device ON job_attempts (device_id, job_id);
