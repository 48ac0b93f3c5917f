-- Where each login came from, as its user recognises it; and rewards for photos, read by user.

ALTER TABLE login_sessions ADD COLUMN network TEXT NOT NULL DEFAULT '';
ALTER TABLE login_sessions ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';  -- "Firefox, Linux"
CREATE INDEX goodness_rewards_by_user ON goodness_rewards (user_id, id);
