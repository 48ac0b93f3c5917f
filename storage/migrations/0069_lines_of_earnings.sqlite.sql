-- The lines of earnings of an account, the newest first.
CREATE INDEX entries_of_earned_in ON entries (credit_account, transfer_id, earned) WHERE earned > 0;
CREATE INDEX entries_of_earned_out ON entries (debit_account, transfer_id, earned) WHERE earned < 0;
