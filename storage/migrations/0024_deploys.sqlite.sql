-- What was paid is never rewritten.

CREATE TRIGGER job_draws_never_changed BEFORE UPDATE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_draws_never_deleted BEFORE DELETE ON job_draws BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TABLE job_reviews_by_attempt (
    job_id TEXT NOT NULL REFERENCES jobs (id),
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
    is_draw BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt),
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
INSERT INTO job_reviews_by_attempt SELECT job_reviews.*, 0 FROM job_reviews;
DROP TABLE job_reviews;
ALTER TABLE job_reviews_by_attempt RENAME TO job_reviews;
CREATE INDEX job_reviews_due ON job_reviews (review_until) WHERE state = 'held';
CREATE INDEX job_reviews_disputed ON job_reviews (disputed_at, job_id) WHERE state = 'disputed';
CREATE INDEX job_reviews_open ON job_reviews (user_id, earned)
    WHERE state IN ('held', 'disputed');

CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews
WHEN OLD.resolved_at IS NOT NULL OR NEW.earned <> OLD.earned OR NEW.price <> OLD.price
    OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;

CREATE TRIGGER job_reviews_never_deleted BEFORE DELETE ON job_reviews BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
