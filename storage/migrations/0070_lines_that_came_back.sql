-- The transfers that brought earned money to an account, for the lists of its terms. `is_back` is 1
-- of money that came back, such as the rest of a purchase, and 0 of a new earning. The entries have
-- the amounts; a trigger on them writes this table, and nothing else does.
CREATE TABLE earned_lines (
    account TEXT NOT NULL,
    is_back BIGINT NOT NULL,
    transfer_id TEXT NOT NULL,
    PRIMARY KEY (account, is_back, transfer_id),
    CONSTRAINT earned_lines_known_kind CHECK (is_back IN (0, 1))
);

INSERT INTO earned_lines (account, is_back, transfer_id)
SELECT DISTINCT e.credit_account,
    CASE WHEN t.kind IN ('capture', 'payout', 'award') THEN 0 ELSE 1 END, e.transfer_id
FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
WHERE e.earned > 0;

-- The table answers what it was for.
DROP INDEX entries_of_earned_in;
