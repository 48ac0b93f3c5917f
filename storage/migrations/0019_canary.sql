-- Canaries: what was found when pages of which the answer is known were fetched through an exit.

-- Why a device is barred: a kind of finding; '' when the operator has said so.
ALTER TABLE exits ADD COLUMN barred_for TEXT NOT NULL DEFAULT '';

-- What was found, for good; an operator may have pardoned it.
CREATE TABLE exit_canaries (
    id TEXT PRIMARY KEY,
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    kind TEXT NOT NULL,
    evidence TEXT NOT NULL,
    found_at BIGINT NOT NULL,
    pardoned_at BIGINT,
    CONSTRAINT exit_canaries_bounded CHECK (LENGTH(kind) <= 32 AND LENGTH(evidence) <= 1000)
);
CREATE INDEX exit_canaries_by_device ON exit_canaries (device_id, id);
CREATE INDEX exits_barred ON exits (barred_at, device_id) WHERE barred_at IS NOT NULL;
