-- The network that a program counts for when too many wait: an IPv4 /24, an IPv6 /32.
ALTER TABLE device_codes ADD COLUMN share TEXT NOT NULL DEFAULT '';
CREATE INDEX device_codes_waiting ON device_codes (expires_at, share) WHERE status = 'pending';
