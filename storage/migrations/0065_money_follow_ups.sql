-- Money comes back weeks after a batch of payouts was settled: the next look at such a batch. Batches
-- of before are looked at once, soon, and then by their age.
ALTER TABLE payout_batches ADD COLUMN watch_at BIGINT;
UPDATE payout_batches SET watch_at = settled_at
WHERE settled_at IS NOT NULL AND outside_id IS NOT NULL;
CREATE INDEX payout_batches_watched ON payout_batches (format, watch_at, id)
    WHERE watch_at IS NOT NULL;
