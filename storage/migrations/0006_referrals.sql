-- Referrals: every user's code, and which users applied whose.

ALTER TABLE users ADD COLUMN referral_code TEXT;
CREATE UNIQUE INDEX users_by_referral_code ON users (referral_code);

CREATE TABLE referrals (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    referrer_id TEXT NOT NULL REFERENCES users (id),
    referrer_bonus BIGINT NOT NULL,
    referred_bonus BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT referrals_between_two CHECK (user_id <> referrer_id)
);
CREATE INDEX referrals_by_referrer ON referrals (referrer_id);
