-- What waits to leave: e-mails, and requests that are answered before they are looked into. A row is
-- written in the transaction that causes it, and deleted when it has left or was given up.
-- `channel` is by which way it leaves, `item_key` what it is: a later one takes an earlier one's place.
-- `share` is whose part of the queue it takes. The payload is sealed, because it may hold a secret.
-- Whoever has it in hand has moved `not_before` ahead, and has until then.

CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    channel TEXT NOT NULL,
    item_key TEXT NOT NULL,
    share TEXT NOT NULL,
    sealed_payload TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    claimed_at BIGINT,
    CONSTRAINT outbox_one_of_a_key UNIQUE (channel, item_key),
    CONSTRAINT outbox_attempts CHECK (attempts >= 0)
);
-- In the order of turns, with all that decides about them: nothing is sorted or read that stays.
CREATE INDEX outbox_due ON outbox (channel, not_before, id, attempts, share);
