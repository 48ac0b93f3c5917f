-- Buyers of sessions are told once, a day before their time is over.

ALTER TABLE bandwidth_sessions ADD COLUMN is_expiry_told BIGINT NOT NULL DEFAULT 0;
CREATE INDEX bandwidth_sessions_expiring ON bandwidth_sessions (expires_at)
    WHERE status = 'active' AND is_expiry_told = 0;

-- What keys spent in days and months that are over is deleted.
CREATE INDEX key_spends_old ON key_spends (begins_at) WHERE period <> 'lifetime';
