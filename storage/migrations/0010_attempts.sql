-- Why a job's last attempt failed, apart from its result; which attempts were given up, and which
-- were lost; what a deploy runs; and indexes for a wallet's latest movements.

ALTER TABLE jobs ADD COLUMN failure_reason TEXT;
UPDATE jobs SET failure_reason = result, result = NULL WHERE status IN ('waiting', 'failed');
UPDATE jobs SET accepted_at = NULL WHERE status = 'waiting';
UPDATE job_attempts SET outcome = 'lost' WHERE outcome = 'waiting';
CREATE INDEX jobs_by_device ON jobs (device_id, id) WHERE status = 'running';

ALTER TABLE deploys ADD COLUMN image TEXT;
ALTER TABLE deploys ADD COLUMN command TEXT;

-- A user's wallet is read from its latest entry backwards.
DROP INDEX entries_by_debit;
DROP INDEX entries_by_credit;
CREATE INDEX entries_by_debit ON entries (debit_account, transfer_id);
CREATE INDEX entries_by_credit ON entries (credit_account, transfer_id);
