-- The public side of the service: invitations, texts with their consents, and the status.

-- A code that opens accounts; only its hash is here.
CREATE TABLE invitations (
    code_hash TEXT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    uses BIGINT NOT NULL,
    uses_left BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    CONSTRAINT invitations_used_within CHECK (uses_left BETWEEN 0 AND uses)
);

-- Terms of use, the privacy policy and the imprint. A version has one row for each language, and
-- never changes. From `valid_from` on the version is valid, until the next one is.
CREATE TABLE site_texts (
    kind TEXT NOT NULL,
    version BIGINT NOT NULL,
    locale TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL,
    published_at BIGINT NOT NULL,
    valid_from BIGINT NOT NULL,
    PRIMARY KEY (kind, version, locale),
    CONSTRAINT site_texts_known_kind CHECK (kind IN ('terms', 'privacy', 'imprint')),
    CONSTRAINT site_texts_numbered CHECK (version > 0)
);

-- Agreement of a user to a version. `network` is empty where it is not known or was erased.
CREATE TABLE consents (
    user_id TEXT NOT NULL REFERENCES users (id),
    kind TEXT NOT NULL,
    version BIGINT NOT NULL,
    given_at BIGINT NOT NULL,
    network TEXT NOT NULL,
    PRIMARY KEY (user_id, kind, version),
    CONSTRAINT consents_known_kind CHECK (kind IN ('terms', 'privacy'))
);

-- Notices of the operator on the page of the status.
CREATE TABLE status_notices (
    id TEXT PRIMARY KEY,
    severity TEXT NOT NULL,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    CONSTRAINT status_notices_known_severity CHECK (severity IN ('info', 'warning', 'outage'))
);

-- The newest look at the components, as JSON, and the seconds of each hour in which a component
-- worked. A row for each hour is exact to a look, and 90 days of them are 13,000 rows; rows of
-- minutes would be sixty times as many.
CREATE TABLE status_now (
    id TEXT PRIMARY KEY,
    at BIGINT NOT NULL,
    components TEXT NOT NULL,
    CONSTRAINT status_now_is_one CHECK (id = 'now')
);
INSERT INTO status_now (id, at, components) VALUES ('now', 0, '{}');

CREATE TABLE status_hours (
    hour BIGINT NOT NULL,
    component TEXT NOT NULL,
    seconds BIGINT NOT NULL,
    PRIMARY KEY (hour, component),
    CONSTRAINT status_hours_not_negative CHECK (seconds >= 0)
);

-- Of each kind of alert the newest e-mail: when it was sent, and what it had found until then.
CREATE TABLE alerts (
    kind TEXT PRIMARY KEY,
    sent_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    detail TEXT NOT NULL
);

-- The newest work of a command: a backup of everything, and an audit with its outcome.
CREATE TABLE upkeep (
    name TEXT PRIMARY KEY,
    at BIGINT NOT NULL,
    has_passed BIGINT NOT NULL,
    CONSTRAINT upkeep_known_name CHECK (name IN ('audit', 'backup'))
);
