-- Deploys whose replicas say themselves what is to run: which revision of it, how many replicas, and
-- how these are replaced (`strategy` is JSON). A deploy without a row here is a number of jobs, as
-- ever. Prices are those of one replica for all its hours: `replica_price` in micro-units of the
-- deploy's currency, `replica_credit` in micro-credits. `updated` is how many replicas of the
-- revision are available, or done, and `progressed_at` when it last rose.

CREATE TABLE deploy_rollouts (
    deploy_id TEXT PRIMARY KEY REFERENCES deploys (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    revision BIGINT NOT NULL,
    desired BIGINT NOT NULL,
    strategy TEXT NOT NULL,
    state TEXT NOT NULL,
    replica_price BIGINT NOT NULL,
    replica_credit BIGINT NOT NULL,
    updated BIGINT NOT NULL DEFAULT 0,
    progressed_at BIGINT NOT NULL,
    problem TEXT,
    CONSTRAINT deploy_rollouts_known_state CHECK (
        state IN ('progressing', 'available', 'stuck', 'paused', 'over')
    ),
    CONSTRAINT deploy_rollouts_amounts CHECK (
        revision > 0 AND desired >= 0 AND replica_price >= 0 AND replica_credit >= 0
        AND updated >= 0
    )
);
CREATE INDEX deploy_rollouts_open ON deploy_rollouts (deploy_id)
    WHERE state IN ('progressing', 'available', 'stuck');
CREATE INDEX deploy_rollouts_by_user ON deploy_rollouts (user_id) WHERE state <> 'over';

-- What was to run, the newest few revisions: `template` is JSON, `secrets` is sealed, and
-- `size_bytes` is what both take.
CREATE TABLE deploy_revisions (
    deploy_id TEXT NOT NULL REFERENCES deploys (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    revision BIGINT NOT NULL,
    template TEXT NOT NULL,
    secrets TEXT,
    size_bytes BIGINT NOT NULL,
    cause TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (deploy_id, revision),
    CONSTRAINT deploy_revisions_known_state CHECK (state IN ('progressing', 'available', 'stuck'))
);

CREATE INDEX deploy_revisions_by_user ON deploy_revisions (user_id, created_at);

-- Which replica a job is, counted from 1, and for how many seconds it is paid at most. One whose device
-- says when it is ready has `ready_within` seconds to become so.
CREATE TABLE deploy_replicas (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    deploy_id TEXT NOT NULL REFERENCES deploys (id),
    number BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    seconds BIGINT NOT NULL,
    ready_within BIGINT,
    stopped_at BIGINT,
    CONSTRAINT deploy_replicas_amounts CHECK (number > 0 AND seconds > 0)
);
CREATE INDEX deploy_replicas_present ON deploy_replicas (deploy_id) WHERE stopped_at IS NULL;
CREATE INDEX deploy_replicas_by_number ON deploy_replicas (deploy_id, number);

-- A hold may be drawn from any number of times before it is resolved, up to its amount.
ALTER TABLE holds ADD COLUMN drawn BIGINT NOT NULL DEFAULT 0
    CONSTRAINT holds_drawn_within CHECK (
        drawn >= 0 AND drawn <= amount AND (captured IS NULL OR drawn <= captured)
    );

-- What an attempt at a replica was paid for the seconds that it could be used: `amount` in micro-units
-- of the deploy's currency, `earned` by the owner of its device in micro-credits.
CREATE TABLE job_draws (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    device_id TEXT NOT NULL REFERENCES devices (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    seconds BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt),
    CONSTRAINT job_draws_amounts CHECK (seconds > 0 AND amount >= 0 AND earned >= 0)
);
CREATE INDEX job_draws_by_user ON job_draws (user_id, created_at);
-- The same seconds, beside how the attempt ended: whoever asks that looks at many attempts.
ALTER TABLE job_attempts ADD COLUMN served_seconds BIGINT NOT NULL DEFAULT 0;
-- From when on devices of the same owner may have a service again that had been ready, and ended.
ALTER TABLE job_attempts ADD COLUMN again_at BIGINT;

-- What an attempt at a replica was paid may be disputed, too: a job has a review for each of these
-- (`is_draw`), or one of its result.
