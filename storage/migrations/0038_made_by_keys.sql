-- Which API key has made a worker token, or set where an endpoint of webhooks is: the first key of its line.
-- NULL is a login.
ALTER TABLE devices ADD COLUMN made_by TEXT;
ALTER TABLE webhook_endpoints ADD COLUMN made_by TEXT;
CREATE INDEX devices_made_by ON devices (user_id, made_by) WHERE made_by IS NOT NULL AND revoked_at IS NULL;
