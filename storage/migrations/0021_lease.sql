-- What is known of an attempt while it runs, and how it ended; and escrow: work that its buyer may
-- look at before the worker is paid.

-- Times are UTC seconds, apart from `deadline`, which is in seconds of `job_clock`.
ALTER TABLE job_attempts ADD COLUMN work_started_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN ready_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN renewed_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN named_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN deadline BIGINT;
ALTER TABLE job_attempts ADD COLUMN phase TEXT;
ALTER TABLE job_attempts ADD COLUMN progress DOUBLE PRECISION;
ALTER TABLE job_attempts ADD COLUMN image_digest TEXT;
ALTER TABLE job_attempts ADD COLUMN failure_kind TEXT;
ALTER TABLE job_attempts ADD COLUMN reason TEXT;
ALTER TABLE job_attempts ADD COLUMN exit_code BIGINT;
ALTER TABLE job_attempts ADD COLUMN cpu_seconds DOUBLE PRECISION;
ALTER TABLE job_attempts ADD COLUMN max_memory_bytes BIGINT;
-- Whoever runs a job now did so when it was paid for from its acceptance on.
UPDATE job_attempts SET work_started_at = started_at WHERE ended_at IS NULL;
CREATE INDEX job_attempts_completed ON job_attempts (device_id) WHERE outcome = 'completed';
CREATE INDEX job_attempts_untimed ON job_attempts (job_id, attempt)
    WHERE ended_at IS NULL AND deadline IS NULL;
CREATE INDEX job_attempts_timed ON job_attempts (deadline) WHERE ended_at IS NULL;

-- For how long daemons were there to hear devices while jobs ran: a clock that nobody can set, and
-- that stands still while no daemon runs.
CREATE TABLE job_clock (
    id BIGINT PRIMARY KEY,
    seconds BIGINT NOT NULL,
    CONSTRAINT job_clock_one_row CHECK (id = 1 AND seconds >= 0)
);
INSERT INTO job_clock (id, seconds) VALUES (1, 0);

-- A finished job whose buyer may look at the result. Until that is decided, what the worker earns is
-- in the worker's held account, and what the house keeps of the price in the house's review account.
CREATE TABLE job_reviews (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    attempt BIGINT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    buyer_id TEXT NOT NULL REFERENCES users (id),
    earned BIGINT NOT NULL,
    currency TEXT NOT NULL,
    price BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    review_until BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    disputed_at BIGINT,
    resolved_at BIGINT,
    CONSTRAINT job_reviews_known_state CHECK (
        state IN ('held', 'confirmed', 'expired', 'disputed', 'upheld', 'reversed')
    ),
    CONSTRAINT job_reviews_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT job_reviews_amounts CHECK (
        earned >= 0 AND price >= 0 AND (currency <> 'credit' OR earned <= price)
    ),
    CONSTRAINT job_reviews_resolved_once CHECK (
        (state IN ('held', 'disputed')) = (resolved_at IS NULL)
    )
);
CREATE INDEX job_reviews_due ON job_reviews (review_until) WHERE state = 'held';
CREATE INDEX job_reviews_disputed ON job_reviews (disputed_at, job_id) WHERE state = 'disputed';
CREATE INDEX job_reviews_open ON job_reviews (user_id, earned)
    WHERE state IN ('held', 'disputed');
