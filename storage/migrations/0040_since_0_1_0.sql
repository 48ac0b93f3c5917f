-- All that was added since 0.1.0, whose last step is 11. The numbers 12 to 39 were steps of unreleased
-- versions that led to the same: a database that has taken them all, and their step 40, has this one.

-- Accounts.

-- Where each login came from, as its user recognises it.
ALTER TABLE login_sessions ADD COLUMN network TEXT NOT NULL DEFAULT '';
ALTER TABLE login_sessions ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';  -- "Firefox, Linux"
-- For the rows that a login deletes of its user, without reading those that stay.
DROP INDEX login_sessions_by_user;
CREATE INDEX login_sessions_by_user ON login_sessions (user_id, expires_at);

-- Networks that a user has logged in from, as digests; only the latest few are kept.
CREATE TABLE login_networks (
    user_id TEXT NOT NULL,
    network_hash TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, network_hash)
);

-- The outbox: e-mails that wait to be sent, and requests that are processed after their answer. A row
-- is written by the transaction that causes it, and deleted when it was sent or is given up.
-- `channel` is how it is sent, `item_key` what it is: a later row replaces an earlier one of its key.
-- `share` is the part of the queue that it counts for. The payload is sealed: it may hold a secret.
-- A claim moves `not_before` ahead, and lasts until then.
CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    channel TEXT NOT NULL,
    item_key TEXT NOT NULL,
    share TEXT NOT NULL,
    sealed_payload TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    claimed_at BIGINT,
    CONSTRAINT outbox_one_of_a_key UNIQUE (channel, item_key),
    CONSTRAINT outbox_attempts CHECK (attempts >= 0)
);
-- In the order in which items are due, with every column of the query: no row that is not due is read.
CREATE INDEX outbox_due ON outbox (channel, not_before, id, attempts, share);

-- Keys that programs call the API with, in the place of their owner's login. Only digests are kept.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    key_hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,  -- how the key begins, so that its owner knows it again
    scopes TEXT NOT NULL,  -- with spaces in between, as are the networks that it may come from; '' is any
    allow_ips TEXT NOT NULL,
    limit_usd BIGINT,  -- micro-units that may be spent with it within each period; NULL is no limit
    limit_credit BIGINT,
    limit_period TEXT NOT NULL,
    purse_id TEXT NOT NULL,  -- what is spent counts here: the first key's of a line that was rolled
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT,
    last_used_network TEXT,
    is_expiry_told BIGINT NOT NULL DEFAULT 0,
    limit_told_at BIGINT NOT NULL DEFAULT -1,  -- the beginning of the period in which it was
    CONSTRAINT api_keys_limits CHECK (limit_usd >= 0 AND limit_credit >= 0),
    CONSTRAINT api_keys_period CHECK (limit_period IN ('day', 'month', 'lifetime'))
);
CREATE INDEX api_keys_by_user ON api_keys (user_id, id);
CREATE INDEX api_keys_expiring ON api_keys (expires_at)
    WHERE revoked_at IS NULL AND is_expiry_told = 0 AND expires_at IS NOT NULL;

-- What was spent with keys, in micro-units: written in the transaction of the hold. Rows of days and
-- months that are over are deleted.
CREATE TABLE key_spends (
    purse_id TEXT NOT NULL,
    currency TEXT NOT NULL,
    period TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    spent BIGINT NOT NULL,
    PRIMARY KEY (purse_id, currency, period, begins_at),
    CONSTRAINT key_spends_spent CHECK (spent >= 0)
);
CREATE INDEX key_spends_old ON key_spends (begins_at) WHERE period <> 'lifetime';

-- Programs on other machines that ask to be let in by somebody who is logged in here (RFC 8628).
CREATE TABLE device_codes (
    id TEXT PRIMARY KEY,
    device_hash TEXT NOT NULL,  -- SHA-256 of the code that the program asks with
    user_hash TEXT NOT NULL,  -- and of the code that a person types
    client_name TEXT NOT NULL,
    scopes TEXT NOT NULL,  -- with commas in between
    network TEXT NOT NULL,  -- where the program asks from
    status TEXT NOT NULL DEFAULT 'pending',
    user_id TEXT REFERENCES users (id),  -- who has answered
    interval_seconds BIGINT NOT NULL,
    next_poll_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    -- The network that a program counts for when too many wait: an IPv4 /24, an IPv6 /32.
    share TEXT NOT NULL DEFAULT '',
    CONSTRAINT device_codes_by_device UNIQUE (device_hash),
    CONSTRAINT device_codes_by_user UNIQUE (user_hash),
    CONSTRAINT device_codes_status CHECK (status IN ('pending', 'approved', 'denied', 'redeemed')),
    CONSTRAINT device_codes_answered CHECK ((status = 'pending') = (user_id IS NULL))
);
CREATE INDEX device_codes_old ON device_codes (expires_at);
CREATE INDEX device_codes_approved ON device_codes (user_id) WHERE status = 'approved';
CREATE INDEX device_codes_waiting ON device_codes (expires_at, share) WHERE status = 'pending';

-- When the bonuses of a referral were paid. Unpaid ones wait for the user to confirm the e-mail
-- address, or for a day whose limits have room for them.
ALTER TABLE referrals ADD COLUMN paid_at BIGINT;
UPDATE referrals SET paid_at = created_at;
CREATE INDEX referrals_pending ON referrals (created_at) WHERE paid_at IS NULL;
CREATE INDEX referrals_by_day ON referrals (paid_at, referrer_bonus, referred_bonus)
    WHERE paid_at IS NOT NULL;
-- A user's bonuses are summed, and those of a day counted, from the index alone.
DROP INDEX referrals_by_referrer;
CREATE INDEX referrals_by_referrer ON referrals (referrer_id, paid_at, referrer_bonus);

-- Rewards for photos are read by user.
CREATE INDEX goodness_rewards_by_user ON goodness_rewards (user_id, id);

-- Money. The engines' own scripts fill these columns in of transfers that exist.

ALTER TABLE transfers ADD COLUMN kind TEXT NOT NULL DEFAULT 'other';
ALTER TABLE transfers ADD COLUMN reference TEXT NOT NULL DEFAULT '';

-- A hold may be drawn from any number of times before it is resolved, up to its amount.
ALTER TABLE holds ADD COLUMN drawn BIGINT NOT NULL DEFAULT 0
    CONSTRAINT holds_drawn_within CHECK (
        drawn >= 0 AND drawn <= amount AND (captured IS NULL OR drawn <= captured)
    );

-- Events and webhooks.

-- What happened to whom: written in the transaction that causes it, kept for a while, never changed.
-- Identifiers are made within that transaction, so a later one may be committed first.
CREATE TABLE events (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,  -- a reference would lock the user's row
    type TEXT NOT NULL,
    subject_id TEXT,  -- what it is about: a session, a job, a device
    data TEXT NOT NULL,  -- JSON, as its type says (market/events/catalogue.py)
    created_at BIGINT NOT NULL
);
CREATE INDEX events_by_user ON events (user_id, id);

-- Where users want to be told of events by HTTP, what is sent there, and each attempt to do so. An
-- endpoint that has never answered well is left alone for a while after each failure.
CREATE TABLE webhook_endpoints (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    url TEXT NOT NULL,
    types TEXT NOT NULL,  -- with commas in between; * is every type
    description TEXT NOT NULL,
    sealed_secret TEXT NOT NULL,
    -- After a roll the one before signs, too, for a while.
    sealed_old_secret TEXT,
    old_until BIGINT,
    created_at BIGINT NOT NULL,
    failing_since BIGINT,  -- the first failure after the last success
    disabled_at BIGINT,
    disabled_reason TEXT,
    made_by TEXT,  -- the first of the line of API keys that set its address; NULL is a login
    proven_at BIGINT,  -- the first success at its address
    quiet_until BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT webhook_endpoints_old CHECK ((sealed_old_secret IS NULL) = (old_until IS NULL)),
    CONSTRAINT webhook_endpoints_off CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
);
CREATE INDEX webhook_endpoints_by_user ON webhook_endpoints (user_id, id);

-- Without references: these would lock rows of others in every transaction that causes an event.
CREATE TABLE webhook_deliveries (
    id TEXT PRIMARY KEY,
    endpoint_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    tries BIGINT NOT NULL DEFAULT 0,  -- those since it was asked for last: how far the schedule is
    next_at BIGINT NOT NULL,
    last_status BIGINT,
    last_error TEXT,
    last_ms BIGINT,
    created_at BIGINT NOT NULL,
    CONSTRAINT webhook_deliveries_once UNIQUE (endpoint_id, event_id),
    CONSTRAINT webhook_deliveries_status CHECK (status IN ('pending', 'delivered', 'failed'))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at, id) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (endpoint_id, next_at, id)
    WHERE status = 'pending';
CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (endpoint_id, id);

CREATE TABLE webhook_attempts (
    delivery_id TEXT NOT NULL REFERENCES webhook_deliveries (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    status BIGINT,
    error TEXT NOT NULL,  -- '' of a success
    ms BIGINT NOT NULL,
    answer TEXT NOT NULL,  -- how the answer began
    PRIMARY KEY (delivery_id, number)
);

-- Nodes and bandwidth.

-- A node's renewals are counted: a second one within the same second left its time unchanged, so that
-- the node seemed silent since the first.
ALTER TABLE nodes ADD COLUMN renewals BIGINT NOT NULL DEFAULT 0;
-- Where devices attach to a node as exits, and where the other nodes reach it ('' and 0: nowhere); and
-- the SHA-256 of the certificate that it shows there, in hexadecimal.
ALTER TABLE nodes ADD COLUMN exits_host TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN exits_port BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN exits_certificate TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN link_host TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN link_port BIGINT NOT NULL DEFAULT 0;

-- Client addresses that a session lists and that are not proved yet: they open nothing, and another
-- session may list them too. Only active sessions have rows. Rows of session_addresses count as
-- proved, those from before this step included, so that an upgrade breaks no session.
CREATE TABLE pending_addresses (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    address TEXT NOT NULL,
    slot BIGINT NOT NULL,
    PRIMARY KEY (session_id, address),
    CONSTRAINT pending_addresses_slot CHECK (slot >= 0)
);

-- What leads to an exit is kept beside the sale: the canonical text of what the buyer wants ('' for a
-- session that leaves directly), and the owners' share of its price. Sessions of before this step may
-- be used through exits too, and pay the share that is the default.
ALTER TABLE bandwidth_sessions ADD COLUMN exit TEXT NOT NULL DEFAULT '';
ALTER TABLE bandwidth_sessions ADD COLUMN exit_share_percent BIGINT NOT NULL DEFAULT 60
    CONSTRAINT bandwidth_sessions_exit_share CHECK (
        exit_share_percent >= 0 AND exit_share_percent <= 100
    );
-- Whether its buyer was told that a session is nearly used up, and, a day before, that it expires.
ALTER TABLE bandwidth_sessions ADD COLUMN is_low BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bandwidth_sessions ADD COLUMN is_expiry_told BIGINT NOT NULL DEFAULT 0;
CREATE INDEX bandwidth_sessions_expiring ON bandwidth_sessions (expires_at)
    WHERE status = 'active' AND is_expiry_told = 0;
-- What a user has open is counted whenever they add to it, from the indexes alone: so each index has
-- every column of the query, even the one that makes it partial.
CREATE INDEX bandwidth_sessions_active_by_user ON bandwidth_sessions (user_id, status, id)
    WHERE status = 'active';

-- The part of a lease's use that left through exits: the sum of its rows in exit_usage, which triggers
-- keep. So the schema refuses exits more than the lease itself has used.
ALTER TABLE bandwidth_leases ADD COLUMN exit_bytes BIGINT NOT NULL DEFAULT 0
    CONSTRAINT bandwidth_leases_exits_within_use CHECK (
        exit_bytes >= 0 AND exit_bytes <= used_bytes
    );

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
INSERT INTO session_usage (user_id, begins_at, session_id, span_seconds, used_bytes)
SELECT user_id, created_at - created_at % 3600, id, 0, bytes_used
FROM bandwidth_sessions WHERE bytes_used > 0;

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

-- Exits: devices through which sessions leave, by the consent of their owners; what each carried of
-- each lease, and what their owners earn. Counts are bytes, amounts micro-USD.

-- A device whose owner has agreed that it is one. `ports` are those of targets, with commas between.
-- The place is where it last came from: country in lower case, '' and 0 for what is not known.
-- `barred_for` is a kind of finding; '' when the operator has said so.
CREATE TABLE exits (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    terms_hash TEXT NOT NULL,
    consented_at BIGINT NOT NULL,
    revoked_at BIGINT,
    paused_at BIGINT,
    barred_at BIGINT,
    connections BIGINT NOT NULL,
    bytes_per_second BIGINT NOT NULL,
    bytes_per_day BIGINT NOT NULL,
    ports TEXT NOT NULL,
    min_price_per_gb BIGINT NOT NULL,
    country TEXT NOT NULL DEFAULT '',
    city TEXT NOT NULL DEFAULT '',
    asn BIGINT NOT NULL DEFAULT 0,
    barred_for TEXT NOT NULL DEFAULT '',
    CONSTRAINT exits_limits CHECK (
        connections > 0 AND bytes_per_second >= 0 AND bytes_per_day >= 0 AND min_price_per_gb >= 0
    )
);
CREATE INDEX exits_by_user ON exits (user_id, device_id);
CREATE INDEX exits_barred ON exits (barred_at, device_id) WHERE barred_at IS NOT NULL;

-- Who agreed to which text, and who took it back, for good; and that a device was pardoned.
CREATE TABLE exit_consents (
    id TEXT PRIMARY KEY,
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    event TEXT NOT NULL,
    terms_hash TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT exit_consents_known_event CHECK (event IN ('given', 'revoked', 'barred', 'pardoned'))
);
CREATE INDEX exit_consents_by_device ON exit_consents (device_id, id);

-- What an exit carried under a lease, in all; written with the lease's own count. `earned` is its
-- owner's share of the price, rounded down.
CREATE TABLE exit_usage (
    lease_id TEXT NOT NULL REFERENCES bandwidth_leases (id),
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    used_bytes BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    PRIMARY KEY (lease_id, device_id),
    CONSTRAINT exit_usage_amounts CHECK (used_bytes >= 0 AND earned >= 0)
);
CREATE INDEX exit_usage_by_session ON exit_usage (session_id, device_id);
CREATE INDEX exit_usage_by_device ON exit_usage (device_id, session_id);

-- The same by the day (since 1970, UTC) on which it was reported.
CREATE TABLE exit_days (
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    day BIGINT NOT NULL,
    used_bytes BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    PRIMARY KEY (device_id, day),
    CONSTRAINT exit_days_amounts CHECK (used_bytes >= 0 AND earned >= 0)
);

-- What an exit has earned of a session. It is posted to its owner's pending account every hour while
-- the session goes on, out of what the house owes for it, so that a session and a device have several,
-- which `number` counts from 0; a session that is settled pays the house back. An earning leaves that
-- account once: paid out to the owner, or reversed. What a barred exit has earned is not posted, and
-- counts as reversed from the beginning.
CREATE TABLE exit_earnings (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    device_id TEXT NOT NULL REFERENCES exits (device_id),
    number BIGINT NOT NULL DEFAULT 0,
    user_id TEXT NOT NULL REFERENCES users (id),
    used_bytes BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    posted_at BIGINT,
    paid_at BIGINT,
    reversed_at BIGINT,
    PRIMARY KEY (session_id, device_id, number),
    CONSTRAINT exit_earnings_amounts CHECK (used_bytes > 0 AND amount > 0),
    CONSTRAINT exit_earnings_resolved_once CHECK (paid_at IS NULL OR reversed_at IS NULL),
    CONSTRAINT exit_earnings_posted_or_reversed CHECK (
        posted_at IS NOT NULL OR reversed_at IS NOT NULL
    )
);
CREATE INDEX exit_earnings_due ON exit_earnings (posted_at, user_id)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
CREATE INDEX exit_earnings_pending ON exit_earnings (user_id, posted_at, device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
-- With the amount, for sums.
CREATE INDEX exit_earnings_by_device ON exit_earnings (device_id, amount)
    WHERE paid_at IS NULL AND reversed_at IS NULL;
-- What was taken back, by device and time.
CREATE INDEX exit_earnings_reversed ON exit_earnings (device_id, reversed_at, amount)
    WHERE reversed_at IS NOT NULL;

-- The exit of a label of a session, where several nodes must agree on it. `label` is a hash of it;
-- `until` is when its lifetime ends. A row is gone soon after that, or after its session has ended.
CREATE TABLE exit_bindings (
    session_id TEXT NOT NULL REFERENCES bandwidth_sessions (id),
    label TEXT NOT NULL,
    device_id TEXT NOT NULL,
    country TEXT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (session_id, label)
);
CREATE INDEX exit_bindings_by_until ON exit_bindings (until);

-- Canaries: what was found when pages of which the answer is known were fetched through an exit, for
-- good; an operator may have pardoned it.
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

-- Devices.

-- Whether its owner was told last that a device is there.
ALTER TABLE devices ADD COLUMN is_present BIGINT NOT NULL DEFAULT 0;
-- Which API key has made a worker token: the first key of its line. NULL is a login.
ALTER TABLE devices ADD COLUMN made_by TEXT;
CREATE INDEX devices_in_use_by_user ON devices (user_id, revoked_at) WHERE revoked_at IS NULL;
-- Not over the time of the last heartbeat: each of them would have to change the index.
CREATE INDEX devices_present ON devices (is_present, id) WHERE is_present = 1;
CREATE INDEX devices_made_by ON devices (user_id, made_by) WHERE made_by IS NOT NULL AND revoked_at IS NULL;

-- What a device has shown that it has, at the last time that it was tried: hashes a second of one core
-- and of all at once, and memory that it has filled. Beside them the most that it has ever shown, so
-- that one which has become slower is seen.
CREATE TABLE device_benchmarks (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    core_hashes BIGINT NOT NULL,
    hashes BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    measured_at BIGINT NOT NULL,
    best_core_hashes BIGINT NOT NULL DEFAULT 0,
    best_hashes BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT device_benchmarks_amounts CHECK (
        core_hashes >= 0 AND hashes >= 0 AND memory_bytes >= 0
    )
);

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

-- Jobs.

-- The size of a job's texts in bytes, so that a sum need not read the texts, which are long. For jobs
-- from before this step it is the number of characters.
ALTER TABLE jobs ADD COLUMN text_bytes BIGINT NOT NULL DEFAULT 0;
UPDATE jobs SET text_bytes = LENGTH(title) + LENGTH(description) + LENGTH(requirements);
-- What a deploy runs is read from the deploy now, and no longer from the texts of its jobs.
UPDATE jobs SET description = (
    SELECT 'A replica of the deploy ' || d.id || '
Type: ' || d.job_type FROM deploys AS d WHERE d.id = jobs.deploy_id
) WHERE deploy_id IN (SELECT id FROM deploys WHERE image IS NOT NULL OR command IS NOT NULL);
CREATE INDEX jobs_waiting ON jobs (created_at) WHERE status = 'waiting';
-- What a user has open is counted from these alone; it matters whether a job is a replica.
CREATE INDEX jobs_open_by_user ON jobs (user_id, status, created_at, price_credit, text_bytes)
    WHERE status IN ('waiting', 'running');
CREATE INDEX jobs_by_user_and_age
    ON jobs (user_id, created_at, earned, price_credit, text_bytes, deploy_id);

-- What is to run, of jobs that say so: `payload` is JSON, with the names of its secrets, whose values
-- are sealed in `secrets` until the job is over. A job without a payload may still say what it needs:
-- `resources` is JSON as it was understood, `warnings` a JSON list of what was not. A job that is
-- manual is offered to no device by itself. `timeout_seconds` is how long the work may take, and
-- `review_hours` how long its buyer may look at the result, where that is not as usual.
-- `min_reputation` is what the buyer asks of the device that gets the job, in millionths.
CREATE TABLE job_specs (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    payload TEXT,
    secrets TEXT,
    resources TEXT NOT NULL DEFAULT '{}',
    warnings TEXT NOT NULL DEFAULT '[]',
    is_manual BIGINT NOT NULL DEFAULT 0,
    timeout_seconds BIGINT,
    review_hours BIGINT,
    min_reputation BIGINT NOT NULL DEFAULT 0
        CONSTRAINT job_specs_reputation CHECK (min_reputation >= 0 AND min_reputation <= 1000000),
    CONSTRAINT job_specs_secrets_of_a_payload CHECK (secrets IS NULL OR payload IS NOT NULL),
    CONSTRAINT job_specs_manual_or_not CHECK (is_manual IN (0, 1)),
    CONSTRAINT job_specs_times CHECK (timeout_seconds > 0 AND review_hours >= 0)
);

-- What is known of an attempt while it runs, and how it ended. Times are UTC seconds, apart from
-- `deadline`, which is in seconds of `job_clock`.
ALTER TABLE job_attempts ADD COLUMN work_started_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN ready_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN renewed_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN named_at BIGINT;
ALTER TABLE job_attempts ADD COLUMN deadline BIGINT;
ALTER TABLE job_attempts ADD COLUMN phase TEXT;
ALTER TABLE job_attempts ADD COLUMN progress DOUBLE PRECISION;
ALTER TABLE job_attempts ADD COLUMN image_digest TEXT;
ALTER TABLE job_attempts ADD COLUMN failure_kind TEXT;
ALTER TABLE job_attempts ADD COLUMN reason TEXT;
ALTER TABLE job_attempts ADD COLUMN exit_code BIGINT;
ALTER TABLE job_attempts ADD COLUMN cpu_seconds DOUBLE PRECISION;
ALTER TABLE job_attempts ADD COLUMN max_memory_bytes BIGINT;
-- The seconds that it was paid for as a replica (job_draws), beside how it ended: the question of how
-- attempts ended looks at many of them.
ALTER TABLE job_attempts ADD COLUMN served_seconds BIGINT NOT NULL DEFAULT 0;
-- From when on devices of the same owner may have a service again that had been ready, and ended.
ALTER TABLE job_attempts ADD COLUMN again_at BIGINT;
-- Outputs that its device did not send, as JSON: how many files and bytes, and why.
ALTER TABLE job_attempts ADD COLUMN left_out TEXT;
-- A device that runs a job now did so when it was paid for from its acceptance on.
UPDATE job_attempts SET work_started_at = started_at WHERE ended_at IS NULL;
CREATE INDEX job_attempts_completed ON job_attempts (device_id) WHERE outcome = 'completed';
CREATE INDEX job_attempts_untimed ON job_attempts (job_id, attempt)
    WHERE ended_at IS NULL AND deadline IS NULL;
CREATE INDEX job_attempts_timed ON job_attempts (deadline) WHERE ended_at IS NULL;

-- For how long daemons were there to hear devices while jobs ran: a clock that nobody can set, and
-- that stands still while no daemon runs.
CREATE TABLE job_clock (
    id BIGINT PRIMARY KEY,
    seconds BIGINT NOT NULL,
    CONSTRAINT job_clock_one_row CHECK (id = 1 AND seconds >= 0)
);
INSERT INTO job_clock (id, seconds) VALUES (1, 0);

-- Work whose buyer may look at the result before the worker is paid. Until that is decided, what the
-- worker earns is in the worker's held account, and what the house keeps of the price in the house's
-- review account. What an attempt at a replica was paid may be disputed, too: a job has a review for
-- each of these (`is_draw`), or one of its result.
CREATE TABLE job_reviews (
    job_id TEXT NOT NULL REFERENCES jobs (id),
    attempt BIGINT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    buyer_id TEXT NOT NULL REFERENCES users (id),
    earned BIGINT NOT NULL,
    currency TEXT NOT NULL,
    price BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    review_until BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    disputed_at BIGINT,
    resolved_at BIGINT,
    is_draw BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt),
    CONSTRAINT job_reviews_known_state CHECK (
        state IN ('held', 'confirmed', 'expired', 'disputed', 'upheld', 'reversed')
    ),
    CONSTRAINT job_reviews_known_currency CHECK (currency IN ('usd', 'credit')),
    CONSTRAINT job_reviews_amounts CHECK (
        earned >= 0 AND price >= 0 AND (currency <> 'credit' OR earned <= price)
    ),
    CONSTRAINT job_reviews_resolved_once CHECK (
        (state IN ('held', 'disputed')) = (resolved_at IS NULL)
    )
);
CREATE INDEX job_reviews_due ON job_reviews (review_until) WHERE state = 'held';
CREATE INDEX job_reviews_disputed ON job_reviews (disputed_at, job_id) WHERE state = 'disputed';
CREATE INDEX job_reviews_open ON job_reviews (user_id, earned)
    WHERE state IN ('held', 'disputed');

-- Logs of attempts. Their bytes are files; a row says whose they are, and what they take on the disk
-- once the attempt is over and somebody has looked.

CREATE TABLE job_logs (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    kept_bytes BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt),
    CONSTRAINT job_logs_amounts CHECK (kept_bytes >= 0)
);
-- Those that nobody has looked at since their attempt ended are looked for again and again.
CREATE INDEX job_logs_open ON job_logs (began_at) WHERE ended_at IS NULL;
CREATE INDEX job_logs_by_age ON job_logs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX job_logs_by_user ON job_logs (user_id, ended_at) WHERE ended_at IS NOT NULL;

-- The sum of the above for each user, so that nobody's past has to be added up.
CREATE TABLE user_logs (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    kept_bytes BIGINT NOT NULL,
    CONSTRAINT user_logs_amounts CHECK (kept_bytes >= 0)
);

-- Files of jobs: inputs that buyers send, outputs and checkpoints that devices do. The bytes are
-- elsewhere (storage/blobs); here is whose they are, and what they should be.

-- A content is there once, however many artifacts have it. Only one whose hash the service has
-- checked itself is shared. What is dropped is taken by nobody any more, and then deleted.
CREATE TABLE artifact_contents (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    is_checked INTEGER NOT NULL,
    dropped_at BIGINT,
    CONSTRAINT artifact_contents_size CHECK (size_bytes >= 0),
    CONSTRAINT artifact_contents_checked CHECK (is_checked IN (0, 1))
);
CREATE UNIQUE INDEX artifact_contents_by_hash ON artifact_contents (digest)
    WHERE dropped_at IS NULL AND is_checked = 1;
CREATE INDEX artifact_contents_dropped ON artifact_contents (dropped_at)
    WHERE dropped_at IS NOT NULL;

-- One without a content is being uploaded. `expires_at` is when it is deleted; NULL for an input,
-- which its owner deletes, and for a file of a job that goes on.
CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    job_id TEXT REFERENCES jobs (id),
    attempt BIGINT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    reference TEXT NOT NULL,
    content_id TEXT REFERENCES artifact_contents (id),
    created_at BIGINT NOT NULL,
    whole_at BIGINT,
    expires_at BIGINT,
    CONSTRAINT artifacts_known_kind CHECK (kind IN ('input', 'output', 'checkpoint')),
    CONSTRAINT artifacts_of_an_attempt CHECK (
        (kind = 'input') = (job_id IS NULL) AND (job_id IS NULL) = (attempt IS NULL)
    ),
    CONSTRAINT artifacts_size CHECK (size_bytes >= 0),
    CONSTRAINT artifacts_whole_with_content CHECK ((whole_at IS NULL) = (content_id IS NULL))
);
-- What a user has is added up whenever more is announced, from the index alone.
CREATE INDEX artifacts_by_user ON artifacts (user_id, id, size_bytes);
CREATE INDEX artifacts_by_hash ON artifacts (user_id, digest, id);
CREATE INDEX artifacts_by_job ON artifacts (job_id, id, attempt, size_bytes)
    WHERE job_id IS NOT NULL;
CREATE INDEX artifacts_by_content ON artifacts (content_id) WHERE content_id IS NOT NULL;
CREATE INDEX artifacts_due ON artifacts (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX artifacts_undecided ON artifacts (kind, job_id)
    WHERE kind <> 'input' AND expires_at IS NULL;

-- Which artifacts a job is given; while it is open, they cannot be deleted.
CREATE TABLE job_inputs (
    job_id TEXT NOT NULL REFERENCES jobs (id),
    artifact_id TEXT NOT NULL REFERENCES artifacts (id),
    PRIMARY KEY (job_id, artifact_id)
);
CREATE INDEX job_inputs_by_artifact ON job_inputs (artifact_id);

-- Copies: jobs that are the same work, done by devices of different owners and networks, so that their
-- results can be compared. A group is named by its first copy. `compare` says how results are compared,
-- `review_seconds` how long the buyer may look at those that are paid for; `result_at` is when the first
-- one came. A group that is agreed has a result that more than half of the copies agree with; one
-- that is undecided will have none.

CREATE TABLE copy_groups (
    id TEXT PRIMARY KEY REFERENCES jobs (id),
    copies BIGINT NOT NULL,
    compare TEXT NOT NULL,
    review_seconds BIGINT NOT NULL,
    state TEXT NOT NULL,
    canonical_id TEXT REFERENCES jobs (id),
    result_at BIGINT,
    decided_at BIGINT,
    CONSTRAINT copy_groups_amounts CHECK (copies > 1 AND review_seconds >= 0),
    CONSTRAINT copy_groups_known_state CHECK (state IN ('open', 'agreed', 'undecided')),
    CONSTRAINT copy_groups_decided_once CHECK (
        (state = 'open') = (decided_at IS NULL) AND (state = 'agreed') = (canonical_id IS NOT NULL)
    )
);
CREATE INDEX copy_groups_with_results ON copy_groups (result_at)
    WHERE state = 'open' AND result_at IS NOT NULL;

-- Which copy of its group a job is, and whether its result agrees with the group's: 'agrees', 'differs',
-- or NULL while it has none, or the group has none.
CREATE TABLE job_copies (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    group_id TEXT NOT NULL REFERENCES copy_groups (id),
    number BIGINT NOT NULL,
    verdict TEXT,
    CONSTRAINT job_copies_known_verdict CHECK (verdict IN ('agrees', 'differs')),
    UNIQUE (group_id, number)
);

-- From which network a device took a copy, where that is known.
CREATE TABLE copy_networks (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    network TEXT NOT NULL,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt)
);

-- Samples: jobs of the operator whose answer is known, each for one device alone. `shown_buyer` is who
-- devices are told has put it up, `price` is in micro-credits; `outcome` is 'right' or 'wrong' once the
-- device has answered, and 'none' if it failed, or was lost.
CREATE TABLE job_samples (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    device_id TEXT NOT NULL REFERENCES devices (id),
    owner_id TEXT NOT NULL REFERENCES users (id),
    answer TEXT NOT NULL,
    shown_buyer TEXT NOT NULL,
    price BIGINT NOT NULL,
    is_first BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    outcome TEXT,
    CONSTRAINT job_samples_amounts CHECK (price > 0 AND is_first IN (0, 1)),
    CONSTRAINT job_samples_known_outcome CHECK (outcome IN ('right', 'wrong', 'none'))
);
CREATE INDEX job_samples_by_day ON job_samples (created_at);
CREATE INDEX job_samples_open ON job_samples (job_id) WHERE outcome IS NULL;

-- How many jobs of others a device is to complete before it gets its next sample. One without a row
-- has had none yet.
CREATE TABLE sample_turns (
    device_id TEXT PRIMARY KEY REFERENCES devices (id),
    jobs_left BIGINT NOT NULL,
    CONSTRAINT sample_turns_amounts CHECK (jobs_left >= 0)
);

-- Deploys whose replicas say themselves what is to run: which revision of it, how many replicas, and
-- how these are replaced (`strategy` is JSON). A deploy without a row here is a number of jobs, as
-- ever. Prices are those of one replica for all its hours: `replica_price` in micro-units of the
-- deploy's currency, `replica_credit` in micro-credits. `updated` is how many replicas of the
-- revision are available, or done, and `progressed_at` when it last rose.

CREATE TABLE deploy_rollouts (
    deploy_id TEXT PRIMARY KEY REFERENCES deploys (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    revision BIGINT NOT NULL,
    desired BIGINT NOT NULL,
    strategy TEXT NOT NULL,
    state TEXT NOT NULL,
    replica_price BIGINT NOT NULL,
    replica_credit BIGINT NOT NULL,
    updated BIGINT NOT NULL DEFAULT 0,
    progressed_at BIGINT NOT NULL,
    problem TEXT,
    CONSTRAINT deploy_rollouts_known_state CHECK (
        state IN ('progressing', 'available', 'stuck', 'paused', 'over')
    ),
    CONSTRAINT deploy_rollouts_amounts CHECK (
        revision > 0 AND desired >= 0 AND replica_price >= 0 AND replica_credit >= 0
        AND updated >= 0
    )
);
CREATE INDEX deploy_rollouts_open ON deploy_rollouts (deploy_id)
    WHERE state IN ('progressing', 'available', 'stuck');
CREATE INDEX deploy_rollouts_by_user ON deploy_rollouts (user_id) WHERE state <> 'over';

-- What was to run, the newest few revisions: `template` is JSON, `secrets` is sealed, and
-- `size_bytes` is what both take.
CREATE TABLE deploy_revisions (
    deploy_id TEXT NOT NULL REFERENCES deploys (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    revision BIGINT NOT NULL,
    template TEXT NOT NULL,
    secrets TEXT,
    size_bytes BIGINT NOT NULL,
    cause TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (deploy_id, revision),
    CONSTRAINT deploy_revisions_known_state CHECK (state IN ('progressing', 'available', 'stuck'))
);

CREATE INDEX deploy_revisions_by_user ON deploy_revisions (user_id, created_at);

-- Which replica a job is, counted from 1, and for how many seconds it is paid at most. One whose device
-- says when it is ready has `ready_within` seconds to become so.
CREATE TABLE deploy_replicas (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id),
    deploy_id TEXT NOT NULL REFERENCES deploys (id),
    number BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    seconds BIGINT NOT NULL,
    ready_within BIGINT,
    stopped_at BIGINT,
    CONSTRAINT deploy_replicas_amounts CHECK (number > 0 AND seconds > 0)
);
CREATE INDEX deploy_replicas_present ON deploy_replicas (deploy_id) WHERE stopped_at IS NULL;
CREATE INDEX deploy_replicas_by_number ON deploy_replicas (deploy_id, number);

-- What an attempt at a replica was paid for the seconds that it could be used: `amount` in micro-units
-- of the deploy's currency, `earned` by the owner of its device in micro-credits.
CREATE TABLE job_draws (
    job_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    device_id TEXT NOT NULL REFERENCES devices (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    seconds BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (job_id, attempt),
    FOREIGN KEY (job_id, attempt) REFERENCES job_attempts (job_id, attempt),
    CONSTRAINT job_draws_amounts CHECK (seconds > 0 AND amount >= 0 AND earned >= 0)
);
CREATE INDEX job_draws_by_user ON job_draws (user_id, created_at);

-- What opens an app: a job, or a deploy, that people reach in a browser. `key_hash` is what a key is
-- compared with; `sealed_key` shows the key to its buyer again, and to nobody who has the database
-- alone.

CREATE TABLE app_keys (
    app_id TEXT PRIMARY KEY,
    job_id TEXT REFERENCES jobs (id),
    deploy_id TEXT REFERENCES deploys (id),
    key_hash TEXT NOT NULL,
    sealed_key TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    CONSTRAINT app_keys_one_owner CHECK (
        (job_id IS NULL) <> (deploy_id IS NULL) AND app_id = COALESCE(job_id, deploy_id)
    )
);
