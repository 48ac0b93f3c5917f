-- How many bytes of each session were used when. The rows of a session add up to its bytes_used, always:
-- they are written in the transactions that change that.
--
-- A row is of an hour (span_seconds 3600, the one in which the use was reported), or of a day (86400, UTC)
-- that hours were added up to when they were old. What was used before this step nobody can date: it is in
-- a row of no length (0), at the hour in which its session was bought.
CREATE TABLE session_usage (
    user_id TEXT NOT NULL,  -- the session's, never another; a reference would lock the user's row
    begins_at BIGINT NOT NULL,
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    span_seconds BIGINT NOT NULL,
    used_bytes BIGINT NOT NULL,  -- below zero where a report took more back than its hour had added
    connections BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, begins_at, session_id, span_seconds),
    CONSTRAINT session_usage_span CHECK (
        (span_seconds IN (0, 3600) AND begins_at % 3600 = 0)
        OR (span_seconds = 86400 AND begins_at % 86400 = 0)
    ),
    CONSTRAINT session_usage_counts CHECK (connections >= 0)
);
CREATE INDEX session_usage_hours ON session_usage (begins_at) WHERE span_seconds = 3600;
CREATE INDEX session_usage_undated ON session_usage (user_id, begins_at) WHERE span_seconds = 0;

-- Connections that got nothing, by reason; counted, never billed.
CREATE TABLE session_refusals (
    user_id TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    span_seconds BIGINT NOT NULL,
    reason TEXT NOT NULL,
    refusals BIGINT NOT NULL,
    PRIMARY KEY (user_id, begins_at, session_id, span_seconds, reason),
    CONSTRAINT session_refusals_span CHECK (
        (span_seconds = 3600 AND begins_at % 3600 = 0)
        OR (span_seconds = 86400 AND begins_at % 86400 = 0)
    ),
    CONSTRAINT session_refusals_counts CHECK (refusals > 0)
);
CREATE INDEX session_refusals_hours ON session_refusals (begins_at) WHERE span_seconds = 3600;

INSERT INTO session_usage (user_id, begins_at, session_id, span_seconds, used_bytes)
SELECT user_id, created_at - created_at % 3600, id, 0, bytes_used
FROM bandwidth_sessions WHERE bytes_used > 0;
