-- The line of each payout in the file of its batch, sealed: an erasure deletes the lines of its user,
-- and the file keeps the others.
CREATE TABLE payout_lines (
    payout_id TEXT PRIMARY KEY REFERENCES payouts (id),
    sealed TEXT NOT NULL
);
