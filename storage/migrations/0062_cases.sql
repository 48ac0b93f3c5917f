-- Decisions of the staff about failed canaries, failed samples, and rewards for photos, each made once.
-- `subject_id` is a finding about an exit, the job of a sample, or a reward.
CREATE TABLE case_decisions (
    kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    decision TEXT NOT NULL,
    decided_at BIGINT NOT NULL,
    PRIMARY KEY (subject_id, kind),
    CONSTRAINT case_decisions_bounded CHECK (LENGTH(kind) <= 16),
    CONSTRAINT case_decisions_known_decision CHECK (decision IN ('upheld', 'voided'))
);
CREATE INDEX case_decisions_by_user ON case_decisions (user_id);

-- What the wrong result of a sample took from the reputation of its device, and of the owner:
-- `correctness` in millionths, and the right checks in a row before it. `checks` counts the checks up
-- to it.
CREATE TABLE sample_losses (
    job_id TEXT NOT NULL REFERENCES job_samples (job_id),
    reputation_id TEXT NOT NULL,
    correctness BIGINT NOT NULL,
    streak BIGINT NOT NULL,
    checks BIGINT NOT NULL,
    PRIMARY KEY (job_id, reputation_id),
    CONSTRAINT sample_losses_bounds CHECK (correctness >= 0 AND streak >= 0 AND checks > 0)
);

CREATE INDEX job_samples_wrong ON job_samples (job_id) WHERE outcome = 'wrong';
