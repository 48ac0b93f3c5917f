-- The answer of a worker to a dispute, for the staff, until the decision. A later one replaces it.
CREATE TABLE dispute_answers (
    job_id TEXT NOT NULL REFERENCES jobs (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    answer TEXT NOT NULL,
    answered_at BIGINT NOT NULL,
    PRIMARY KEY (job_id, user_id),
    CONSTRAINT dispute_answers_bounded CHECK (LENGTH(answer) <= 2000)
);
CREATE INDEX dispute_answers_by_user ON dispute_answers (user_id);
