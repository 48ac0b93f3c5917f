-- Money comes back weeks after a batch of payouts was settled: the next look at such a batch. Batches
-- of before are looked at once, soon, and then by their age.
ALTER TABLE payout_batches ADD COLUMN watch_at BIGINT;
UPDATE payout_batches SET watch_at = settled_at
WHERE settled_at IS NOT NULL AND outside_id IS NOT NULL;
CREATE INDEX payout_batches_watched ON payout_batches (format, watch_at, id)
    WHERE watch_at IS NOT NULL;

-- An erasure also ends the open page for a card at the provider, and deletes the customer there. `id`
-- is the provider's identifier of the thing.
ALTER TABLE forgotten_cards RENAME TO forgotten_at_provider;
ALTER TABLE forgotten_at_provider RENAME COLUMN card_id TO id;
ALTER TABLE forgotten_at_provider ADD COLUMN kind TEXT NOT NULL DEFAULT 'card'
    CONSTRAINT forgotten_known_kind CHECK (kind IN ('card', 'page', 'customer'));

-- A doubtful payment whose facts change has another doubt, which the staff accepts again: `doubts`
-- counts the changes. `title` names a payment to its payer, and is the same in each repetition of its
-- request.
ALTER TABLE payments ADD COLUMN doubts BIGINT NOT NULL DEFAULT 0;
ALTER TABLE payments ADD COLUMN title TEXT NOT NULL DEFAULT '';

-- The sweep reads the top-ups in pages by user, and compares all wallets: no query uses this index.
DROP INDEX top_ups_due;
