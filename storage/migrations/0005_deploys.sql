-- Deploys: each of their replicas is a job, held in the currency that the buyer pays with.

CREATE TABLE deploys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    job_name TEXT NOT NULL,
    job_type TEXT NOT NULL,
    gpu_model TEXT NOT NULL,
    gpu_count BIGINT NOT NULL,
    duration_hrs BIGINT NOT NULL,
    replicas BIGINT NOT NULL,
    currency TEXT NOT NULL,
    price BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT deploys_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT deploys_amounts CHECK (
        gpu_count > 0 AND duration_hrs > 0 AND replicas > 0 AND price >= 0
    )
);
CREATE INDEX deploys_by_user ON deploys (user_id, id);

ALTER TABLE jobs ADD COLUMN deploy_id TEXT REFERENCES deploys (id);
ALTER TABLE jobs ADD COLUMN currency TEXT NOT NULL DEFAULT 'credit';
ALTER TABLE jobs ADD COLUMN price_held BIGINT NOT NULL DEFAULT 0;
UPDATE jobs SET price_held = price_credit;
CREATE INDEX jobs_by_deploy ON jobs (deploy_id) WHERE deploy_id IS NOT NULL;
