-- Samples: jobs of the operator whose answer is known, each for one device alone. `shown_buyer` is who
-- devices are told has put it up, `price` is in micro-credits; `outcome` is 'right' or 'wrong' once the
-- device has answered, and 'none' if it failed, or was lost.
CREATE TABLE job_samples (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    device_id TEXT NOT NULL REFERENCES devices (id),
    owner_id TEXT NOT NULL REFERENCES users (id),
    answer TEXT NOT NULL,
    shown_buyer TEXT NOT NULL,
    price BIGINT NOT NULL,
    is_first BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    outcome TEXT,
    CONSTRAINT job_samples_amounts CHECK (price > 0 AND is_first IN (0, 1)),
    CONSTRAINT job_samples_known_outcome CHECK (outcome IN ('right', 'wrong', 'none'))
);
CREATE INDEX job_samples_by_day ON job_samples (created_at);
CREATE INDEX job_samples_open ON job_samples (job_id) WHERE outcome IS NULL;

-- How many jobs of others a device is to complete before it gets its next sample. One without a row
-- has had none yet.
CREATE TABLE sample_turns (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    jobs_left BIGINT NOT NULL,
    CONSTRAINT sample_turns_amounts CHECK (jobs_left >= 0)
);

-- The most that a device has ever shown, so that one which has become slower is seen.
ALTER TABLE device_benchmarks ADD COLUMN best_core_hashes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE device_benchmarks ADD COLUMN best_hashes BIGINT NOT NULL DEFAULT 0;
UPDATE device_benchmarks SET best_core_hashes = core_hashes, best_hashes = hashes;
