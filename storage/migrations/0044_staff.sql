-- Staff of the service, the log of all acts of staff, and indexes for the search of the staff.

-- A member of the staff has one role. `sealed_factor` is the secret of the second factor (TOTP,
-- RFC 6238), sealed; `last_step` is the newest time step whose code was used, so that a code counts
-- once.
CREATE TABLE staff (
    id TEXT PRIMARY KEY,
    email TEXT NOT NULL,
    email_key TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    password_hash TEXT NOT NULL,
    sealed_factor TEXT NOT NULL,
    last_step BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    locked_at BIGINT,
    CONSTRAINT staff_known_role CHECK (role IN ('support', 'finance', 'operator'))
);

-- Codes that replace the second factor, once each; only their hashes are here.
CREATE TABLE staff_recovery (
    staff_id TEXT NOT NULL REFERENCES staff (id),
    code_hash TEXT NOT NULL,
    used_at BIGINT,
    PRIMARY KEY (staff_id, code_hash)
);

-- The log: each row is one act. `hash` covers the row and the hash of the row before it. A row has
-- identifiers, amounts and states, and no personal data: free text is in `texts`, and the row has only
-- the salted hash of the text. References to other tables than `staff` are absent: the log outlives
-- its subjects.
CREATE TABLE staff_log (
    number BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    via TEXT NOT NULL,
    staff_id TEXT REFERENCES staff (id),
    unix_user TEXT,
    role TEXT,
    action TEXT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT,
    user_id TEXT,
    text_id TEXT,
    text_hash TEXT,
    changes TEXT NOT NULL,
    hash TEXT NOT NULL,
    CONSTRAINT staff_log_numbered CHECK (number > 0),
    CONSTRAINT staff_log_known_via CHECK (via IN ('page', 'api', 'socket', 'machine', 'rule')),
    CONSTRAINT staff_log_has_author CHECK (
        staff_id IS NOT NULL OR unix_user IS NOT NULL OR via = 'rule'
    ),
    CONSTRAINT staff_log_text_is_hashed CHECK ((text_id IS NULL) = (text_hash IS NULL))
);

-- The newest row of the log. Each act locks this row first, which gives the acts their order.
CREATE TABLE staff_log_head (
    id TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    hash TEXT NOT NULL,
    CONSTRAINT staff_log_head_is_one CHECK (id = 'head')
);
INSERT INTO staff_log_head (id, number, hash) VALUES ('head', 0, '');

-- The free text of the acts. Erasing a text empties it and its salt, and the log stays valid.
CREATE TABLE texts (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    log_number BIGINT NOT NULL,
    user_id TEXT,
    body TEXT NOT NULL,
    salt TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    erased_at BIGINT,
    CONSTRAINT texts_known_kind CHECK (kind IN ('reason', 'note', 'search', 'decision', 'ticket')),
    CONSTRAINT texts_erased_whole CHECK (erased_at IS NULL OR (body = '' AND salt = ''))
);
