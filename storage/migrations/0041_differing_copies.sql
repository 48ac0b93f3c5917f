-- The last day (of UTC, since 1970) on which a copy of the buyer's that differed has counted against
-- the owner.

ALTER TABLE reputation_buyers ADD COLUMN differed_on BIGINT;
