-- readable from 56
-- The addresses that a device was seen at, for complaints about its connections: from when to when it was seen
-- there. Rows are deleted when the access records of their time are.
CREATE TABLE device_origins (
    device_id TEXT NOT NULL REFERENCES devices (id),
    began_at BIGINT NOT NULL,
    address TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    PRIMARY KEY (device_id, began_at, address),
    CONSTRAINT device_origins_ordered CHECK (ended_at >= began_at)
);
CREATE INDEX device_origins_by_address ON device_origins (address, ended_at);
CREATE INDEX device_origins_by_end ON device_origins (ended_at);
