-- Each restoration of this database from a backup. While one is not confirmed, daemons send nothing and pay
-- nothing: the service that the backup was made of may still run.

CREATE TABLE restorations (
    id TEXT PRIMARY KEY,
    copied_at BIGINT NOT NULL,
    restored_at BIGINT NOT NULL,
    confirmed_at BIGINT
);
