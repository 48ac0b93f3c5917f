-- Copies: jobs that are the same work, done by devices of different owners and networks, so that their
-- results can be compared. A group is named by its first copy. `compare` says how results are compared,
-- `review_seconds` how long the buyer may look at those that are paid for; `result_at` is when the first
-- one came. A group that is agreed has a result that more than half of the copies agree with; one
-- that is undecided will have none.

CREATE TABLE copy_groups (
    id TEXT PRIMARY KEY REFERENCES jobs (id),
    copies BIGINT NOT NULL,
    compare TEXT NOT NULL,
    review_seconds BIGINT NOT NULL,
    state TEXT NOT NULL,
    canonical_id TEXT REFERENCES jobs (id),
    result_at BIGINT,
    decided_at BIGINT,
    CONSTRAINT copy_groups_amounts CHECK (copies > 1 AND review_seconds >= 0),
    CONSTRAINT copy_groups_known_state CHECK (state IN ('open', 'agreed', 'undecided')),
    CONSTRAINT copy_groups_decided_once CHECK (
        (state = 'open') = (decided_at IS NULL) AND (state = 'agreed') = (canonical_id IS NOT NULL)
    )
);
CREATE INDEX copy_groups_with_results ON copy_groups (result_at)
    WHERE state = 'open' AND result_at IS NOT NULL;

-- Which copy of its group a job is, and whether its result agrees with the group's: 'agrees', 'differs',
-- or NULL while it has none, or the group has none.
CREATE TABLE job_copies (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    group_id TEXT NOT NULL REFERENCES copy_groups (id),
    number BIGINT NOT NULL,
    verdict TEXT,
    CONSTRAINT job_copies_known_verdict CHECK (verdict IN ('agrees', 'differs')),
    UNIQUE (group_id, number)
);

-- From which network a device took a copy, where that is known.
CREATE TABLE copy_networks (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    network TEXT NOT NULL,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt)
);
