-- Suspended parts of users, halted sessions, and the orders that every node carries out at once.

-- A row is a part of a user's account that is suspended now; resuming deletes it, and the log of the
-- staff keeps both acts. `shown_id` is the text that the user reads. `ends_at` is the time at which
-- the part resumes by itself, NULL for never.
CREATE TABLE suspended_parts (
    user_id TEXT NOT NULL REFERENCES users (id),
    part TEXT NOT NULL,
    shown_id TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    ends_at BIGINT,
    PRIMARY KEY (user_id, part),
    CONSTRAINT suspended_parts_known CHECK (
        part IN ('logins', 'keys', 'sessions', 'devices', 'purchases')
    ),
    CONSTRAINT suspended_parts_last CHECK (ends_at IS NULL OR ends_at > began_at)
);
CREATE INDEX suspended_parts_by_end ON suspended_parts (ends_at) WHERE ends_at IS NOT NULL;

-- A halted session stays active: its hold and its end stay, and no node relays for it.
ALTER TABLE bandwidth_sessions ADD COLUMN halted_at BIGINT;

-- Orders to all nodes, numbered in the order of their commits. Each node carries out those that are
-- new to it, and acknowledges them with the number of connections that it has cut. Without a session
-- an order is about everything of a user. Old orders are deleted.
CREATE TABLE halts (
    number BIGINT PRIMARY KEY,
    kind TEXT NOT NULL,
    user_id TEXT NOT NULL,
    session_id TEXT,
    created_at BIGINT NOT NULL,
    CONSTRAINT halts_numbered CHECK (number > 0),
    CONSTRAINT halts_known_kind CHECK (kind IN ('halt', 'go', 'look'))
);

CREATE TABLE halt_acks (
    number BIGINT NOT NULL REFERENCES halts (number),
    node_id TEXT NOT NULL,
    connections BIGINT NOT NULL,
    PRIMARY KEY (number, node_id),
    CONSTRAINT halt_acks_counted CHECK (connections >= 0)
);
