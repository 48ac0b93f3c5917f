-- Appeals of one side of a decided dispute, one for each side. `given` is the amount that the house has
-- paid for it. Its decision is in `case_decisions`, made at `decided_at`.
CREATE TABLE appeals (
    id TEXT PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    reason TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    given BIGINT NOT NULL DEFAULT 0,
    decided_at BIGINT,
    CONSTRAINT appeals_once UNIQUE (job_id, user_id),
    CONSTRAINT appeals_bounded CHECK (LENGTH(reason) <= 2000 AND given >= 0)
);
CREATE INDEX appeals_by_user ON appeals (user_id, id);
CREATE INDEX appeals_open ON appeals (due_at, id) WHERE decided_at IS NULL;
