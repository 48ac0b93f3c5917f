-- Rules that stop sessions for a time, levels of new accounts, and look-ups that all nodes
-- answer.

-- A halt can have an end (`halted_until`), at which a sweep releases the session, and a reason that
-- its buyer reads. `released_at` is the time at which a halt ended the last time: a finding of a rule
-- from before that time does not halt the session again.
ALTER TABLE bandwidth_sessions ADD COLUMN halted_until BIGINT;
ALTER TABLE bandwidth_sessions ADD COLUMN halt_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE bandwidth_sessions ADD COLUMN released_at BIGINT;
CREATE INDEX bandwidth_sessions_to_release ON bandwidth_sessions (halted_until)
    WHERE halted_until IS NOT NULL;

-- Stops of sessions by rules; kept for 30 days. `figures` is JSON: the counts of the minute. `told_at`
-- is the time of the e-mail to the buyer. `counted_at` is the time of the suspension that has counted
-- this stop: the next one needs others.
CREATE TABLE rule_stops (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    rule TEXT NOT NULL,
    found_at BIGINT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    halted_until BIGINT NOT NULL,
    figures TEXT NOT NULL,
    told_at BIGINT,
    counted_at BIGINT,
    PRIMARY KEY (session_id, rule, found_at)
);
CREATE INDEX rule_stops_by_user ON rule_stops (user_id, found_at);
CREATE INDEX rule_stops_by_time ON rule_stops (found_at);
CREATE INDEX rule_stops_untold ON rule_stops (found_at) WHERE told_at IS NULL;

-- The highest figures of each session in an hour (its number since 1970), from a quarter of a
-- threshold on; kept for 30 days. They show what another threshold would have stopped.
CREATE TABLE rule_peaks (
    hour BIGINT NOT NULL,
    rule TEXT NOT NULL,
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    amount BIGINT NOT NULL,
    failed_percent BIGINT NOT NULL,
    PRIMARY KEY (hour, rule, session_id),
    CONSTRAINT rule_peaks_counted CHECK (amount > 0 AND failed_percent BETWEEN 0 AND 100)
);
CREATE INDEX rule_peaks_by_session ON rule_peaks (session_id);

-- The level of an account in place of the one by its age and its purchases, NULL for that one.
ALTER TABLE user_limits ADD COLUMN level TEXT CHECK (level IN ('new', 'known'));

-- Questions about records, which all nodes answer from their own files; each lives for ten minutes.
-- `question` and `findings` are JSON.
CREATE TABLE looks (
    id TEXT PRIMARY KEY,
    question TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX looks_by_time ON looks (created_at);

CREATE TABLE look_findings (
    look_id TEXT NOT NULL REFERENCES looks (id),
    node_id TEXT NOT NULL,
    findings TEXT NOT NULL,
    PRIMARY KEY (look_id, node_id)
);
