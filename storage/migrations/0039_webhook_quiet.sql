-- An endpoint that has never answered well is left alone for a while after each failure.
ALTER TABLE webhook_endpoints ADD COLUMN proven_at BIGINT;  -- the first success at its address
ALTER TABLE webhook_endpoints ADD COLUMN quiet_until BIGINT NOT NULL DEFAULT 0;
UPDATE webhook_endpoints SET proven_at = created_at WHERE failing_since IS NULL;
