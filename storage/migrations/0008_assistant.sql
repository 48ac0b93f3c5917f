-- Rewards for photos of good deeds, and the prints (perceptual hashes) of those photos.
-- A print is cut into bands, each with an index, so that similar prints are found by a band in common.

CREATE TABLE goodness_rewards (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    day BIGINT NOT NULL,
    category TEXT NOT NULL,
    confidence DOUBLE PRECISION NOT NULL,
    model TEXT NOT NULL,
    amount BIGINT NOT NULL,
    file_hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    CONSTRAINT goodness_rewards_positive CHECK (amount > 0)
);
CREATE INDEX goodness_rewards_by_day ON goodness_rewards (day, user_id, amount);

CREATE TABLE goodness_prints (
    reward_id TEXT NOT NULL REFERENCES goodness_rewards (id),
    number BIGINT NOT NULL,
    bits BIGINT NOT NULL,
    detail BIGINT NOT NULL,
    band_a BIGINT NOT NULL,
    band_b BIGINT NOT NULL,
    band_c BIGINT NOT NULL,
    band_d BIGINT NOT NULL,
    PRIMARY KEY (reward_id, number)
);
CREATE INDEX goodness_prints_by_band_a ON goodness_prints (band_a, bits, detail);
CREATE INDEX goodness_prints_by_band_b ON goodness_prints (band_b, bits, detail);
CREATE INDEX goodness_prints_by_band_c ON goodness_prints (band_c, bits, detail);
CREATE INDEX goodness_prints_by_band_d ON goodness_prints (band_d, bits, detail);
