-- Saved cards, and automatic payments by them.

-- An automatic payment has the card that it is taken from: each repetition of its request names the
-- same card. A user has one open automatic payment at most.
ALTER TABLE payments ADD COLUMN customer_id TEXT;
ALTER TABLE payments ADD COLUMN card_id TEXT;
CREATE UNIQUE INDEX payments_one_automatic ON payments (user_id)
    WHERE card_id IS NOT NULL AND status = 'open';

-- The card that a user has saved at a provider, and the page where a card is saved. `shown` has the
-- brand and the last digits. `setup_ref` is the provider's identifier of the page. `setups` counts the
-- pages since `setups_since`.
CREATE TABLE saved_cards (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    provider TEXT NOT NULL,
    customer_id TEXT,
    card_id TEXT,
    shown TEXT NOT NULL DEFAULT '',
    saved_at BIGINT,
    setup_id TEXT,
    setup_ref TEXT,
    setup_url TEXT NOT NULL DEFAULT '',
    looked_at BIGINT NOT NULL DEFAULT 0,
    next_look_at BIGINT,
    setups BIGINT NOT NULL DEFAULT 0,
    setups_since BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT saved_cards_are_whole CHECK (
        card_id IS NULL OR (customer_id IS NOT NULL AND saved_at IS NOT NULL)
    )
);
CREATE INDEX saved_cards_due ON saved_cards (next_look_at) WHERE next_look_at IS NOT NULL;
CREATE INDEX saved_cards_by_setup ON saved_cards (setup_ref) WHERE setup_ref IS NOT NULL;

-- Cards that the provider still has to remove.
CREATE TABLE forgotten_cards (
    card_id TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    next_at BIGINT NOT NULL
);
CREATE INDEX forgotten_cards_due ON forgotten_cards (next_at);

-- The automatic top-up of a user: below `threshold` of available micro-USD, `amount` is paid in, and
-- at most `month_ceiling` in a calendar month. The next attempt comes at `next_at` or later.
CREATE TABLE top_ups (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    state TEXT NOT NULL,
    threshold BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    month_ceiling BIGINT NOT NULL,
    refusals BIGINT NOT NULL DEFAULT 0,
    next_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    CONSTRAINT top_ups_known_state CHECK (state IN ('on', 'off', 'paused', 'disabled')),
    CONSTRAINT top_ups_amounts CHECK (
        threshold > 0 AND amount > 0 AND month_ceiling >= amount AND refusals >= 0
    )
);
CREATE INDEX top_ups_due ON top_ups (next_at) WHERE state = 'on';
