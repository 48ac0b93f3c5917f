-- Of two signs of life within one second the second changed nothing, so that a node counted as
-- unseen since the first. Each is counted now.

ALTER TABLE nodes ADD COLUMN renewals BIGINT NOT NULL DEFAULT 0;
