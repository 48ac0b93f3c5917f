-- The outbox: e-mails that wait to be sent, and requests that are processed after their answer. A row
-- is written by the transaction that causes it, and deleted when it was sent or is given up.
-- `channel` is how it is sent, `item_key` what it is: a later row replaces an earlier one of its key.
-- `share` is the part of the queue that it counts for. The payload is sealed: it may hold a secret.
-- A claim moves `not_before` ahead, and lasts until then.

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
-- In the order in which items are due, with every column of the query: no row that is not due is read.
CREATE INDEX outbox_due ON outbox (channel, not_before, id, attempts, share);
