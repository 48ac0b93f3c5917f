-- What is known of devices and of the people who own them, one row each: `reliability` and
-- `correctness` are shares in millionths, with how many attempts and checks they are made of, and
-- `streak` is how many checks were right since one was not. A check compares a result with one that
-- is known to be right.
CREATE TABLE reputations (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    reliability BIGINT NOT NULL,
    correctness BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    checks BIGINT NOT NULL DEFAULT 0,
    streak BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT reputations_known_kind CHECK (kind IN ('device', 'owner')),
    CONSTRAINT reputations_shares CHECK (
        reliability >= 0 AND reliability <= 1000000 AND correctness >= 0 AND correctness <= 1000000
    ),
    CONSTRAINT reputations_counts CHECK (attempts >= 0 AND checks >= streak AND streak >= 0)
);

-- How many attempts at the jobs of one buyer have counted for one owner on a day (of UTC, since
-- 1970): one who works with another's jobs, or against another's devices, moves little.
CREATE TABLE reputation_buyers (
    owner_id TEXT NOT NULL REFERENCES users (id),
    buyer_id TEXT NOT NULL REFERENCES users (id),
    day BIGINT NOT NULL,
    counted BIGINT NOT NULL,
    PRIMARY KEY (owner_id, buyer_id)
);

-- What the buyer of a job asks of the device that gets it, in millionths.
ALTER TABLE job_specs ADD COLUMN min_reputation BIGINT NOT NULL DEFAULT 0
    CONSTRAINT job_specs_reputation CHECK (min_reputation >= 0 AND min_reputation <= 1000000);

-- What a device has shown that it has, at the last time that it was tried: hashes a second of one core
-- and of all at once, and memory that it has filled.
CREATE TABLE device_benchmarks (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    core_hashes BIGINT NOT NULL,
    hashes BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    measured_at BIGINT NOT NULL,
    CONSTRAINT device_benchmarks_amounts CHECK (
        core_hashes >= 0 AND hashes >= 0 AND memory_bytes >= 0
    )
);
