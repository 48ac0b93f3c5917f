-- What opens an app: a job, or a deploy, that people reach in a browser. `key_hash` is what a key is
-- compared with; `sealed_key` shows the key to its buyer again, and to nobody who has the database
-- alone.

CREATE TABLE app_keys (
    app_id TEXT PRIMARY KEY,
    job_id TEXT REFERENCES jobs (id),
    deploy_id TEXT REFERENCES deploys (id),
    key_hash TEXT NOT NULL,
    sealed_key TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT app_keys_one_owner CHECK (
        (job_id IS NULL) <> (deploy_id IS NULL) AND app_id = COALESCE(job_id, deploy_id)
    )
);
