-- Client addresses that a session lists and that are not proved yet: they open nothing, and another
-- session may list them too. Only active sessions have rows. Rows of session_addresses count as
-- proved, those from before this step included, so that an upgrade breaks no session.

CREATE TABLE pending_addresses (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    address TEXT NOT NULL,
    slot BIGINT NOT NULL,
    PRIMARY KEY (session_id, address),
    CONSTRAINT pending_addresses_slot CHECK (slot >= 0)
);

-- What a user has open is counted whenever they add to it, from the indexes alone: so each index has
-- every column of the query, even the one that makes it partial.
CREATE INDEX bandwidth_sessions_active_by_user ON bandwidth_sessions (user_id, status, id)
    WHERE status = 'active';

-- The size of a job's texts in bytes, so that a sum need not read the texts, which are long. For jobs
-- from before this step it is the number of characters.
ALTER TABLE jobs ADD COLUMN text_bytes BIGINT NOT NULL DEFAULT 0;
UPDATE jobs SET text_bytes = LENGTH(title) + LENGTH(description) + LENGTH(requirements);
CREATE INDEX jobs_open_by_user ON jobs (user_id, status, created_at, price_credit, text_bytes)
    WHERE status IN ('waiting', 'running');
CREATE INDEX jobs_by_user_and_age ON jobs (user_id, created_at, earned, price_credit, text_bytes);
CREATE INDEX jobs_waiting ON jobs (created_at) WHERE status = 'waiting';
CREATE INDEX devices_in_use_by_user ON devices (user_id, revoked_at) WHERE revoked_at IS NULL;

-- When the bonuses of a referral were paid. Unpaid ones wait for the user to confirm the e-mail
-- address, or for a day whose limits have room for them.
ALTER TABLE referrals ADD COLUMN paid_at BIGINT;
UPDATE referrals SET paid_at = created_at;
CREATE INDEX referrals_pending ON referrals (created_at) WHERE paid_at IS NULL;
CREATE INDEX referrals_by_day ON referrals (paid_at, referrer_bonus, referred_bonus)
    WHERE paid_at IS NOT NULL;
DROP INDEX referrals_by_referrer;
CREATE INDEX referrals_by_referrer ON referrals (referrer_id, paid_at);

-- What a deploy runs is read from the deploy now, and no longer from the texts of its jobs.
UPDATE jobs SET description = (
    SELECT 'A replica of the deploy ' || d.id || '
Type: ' || d.job_type FROM deploys AS d WHERE d.id = jobs.deploy_id
) WHERE deploy_id IN (SELECT id FROM deploys WHERE image IS NOT NULL OR command IS NOT NULL);
