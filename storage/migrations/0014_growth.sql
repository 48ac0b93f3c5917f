-- The kind and the reference of each transfer in columns of their own; and indexes for every query
-- that would otherwise take longer as the market grows.

ALTER TABLE transfers ADD COLUMN kind TEXT NOT NULL DEFAULT 'other';
ALTER TABLE transfers ADD COLUMN reference TEXT NOT NULL DEFAULT '';

-- For the rows that a login deletes of its user, without reading those that stay.
DROP INDEX login_sessions_by_user;
CREATE INDEX login_sessions_by_user ON login_sessions (user_id, expires_at);

-- A user's bonuses are summed, and those of a day counted, from the index alone.
DROP INDEX referrals_by_referrer;
CREATE INDEX referrals_by_referrer ON referrals (referrer_id, paid_at, referrer_bonus);
