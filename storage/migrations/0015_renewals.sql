-- A node's renewals are counted: a second one within the same second left its time unchanged, so that
-- the node seemed silent since the first.

ALTER TABLE nodes ADD COLUMN renewals BIGINT NOT NULL DEFAULT 0;
