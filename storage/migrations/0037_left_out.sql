-- Outputs of an attempt that its device did not send, as JSON: how many files and bytes, and why.

ALTER TABLE job_attempts ADD COLUMN left_out TEXT;
