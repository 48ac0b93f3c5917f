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
