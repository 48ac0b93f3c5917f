-- Batches of a provider that were refused, or whose outcome is not known.

-- A refused batch is divided: `parent_id` is the batch that a payout was in before. `tried_at` is the
-- time of the first attempt with an unknown outcome, `looked_at` that of the newest work. A doubtful
-- batch waits for the staff.
ALTER TABLE payout_batches ADD COLUMN parent_id TEXT REFERENCES payout_batches (id);
ALTER TABLE payout_batches ADD COLUMN tried_at BIGINT;
ALTER TABLE payout_batches ADD COLUMN looked_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE payout_batches ADD COLUMN doubtful_at BIGINT;

-- An older version may have tried these.
UPDATE payout_batches SET tried_at = created_at
WHERE format IN ('paypal', 'stripe') AND outside_id IS NULL AND settled_at IS NULL;

DROP INDEX payout_batches_open;
CREATE INDEX payout_batches_open ON payout_batches (format, looked_at, id)
    WHERE settled_at IS NULL AND doubtful_at IS NULL;
CREATE INDEX payout_batches_doubtful ON payout_batches (doubtful_at, id)
    WHERE settled_at IS NULL AND doubtful_at > 0;
