-- What a user has open is counted from the indexes alone whenever they add to it (step 13). Since step 24
-- it is another matter whether a job is a replica; only those are looked at.
DROP INDEX jobs_by_user_and_age;
CREATE INDEX jobs_by_user_and_age
    ON jobs (user_id, created_at, earned, price_credit, text_bytes, deploy_id);
