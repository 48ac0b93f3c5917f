-- What each transfer is and what it was for, in words of its own; and indexes for every question
-- that would otherwise take longer the more there is.

ALTER TABLE transfers ADD COLUMN kind TEXT NOT NULL DEFAULT 'other';
ALTER TABLE transfers ADD COLUMN reference TEXT NOT NULL DEFAULT '';

-- What a login cleans up of its own user, without reading what stays.
DROP INDEX login_sessions_by_user;
CREATE INDEX login_sessions_by_user ON login_sessions (user_id, expires_at);

-- The bonus of a user is added up, and those of a day are counted, from the index alone.
DROP INDEX referrals_by_referrer;
CREATE INDEX referrals_by_referrer ON referrals (referrer_id, paid_at, referrer_bonus);
