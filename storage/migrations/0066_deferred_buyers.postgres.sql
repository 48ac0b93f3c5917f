-- readable from 65
-- A new row of a pair locks both users, and the end of a job locks their accounts after that. All other units lock the
-- account before its user. So the check of both users waits for the commit, when the accounts are locked.
ALTER TABLE reputation_buyers ALTER CONSTRAINT reputation_buyers_owner_id_fkey DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE reputation_buyers ALTER CONSTRAINT reputation_buyers_buyer_id_fkey DEFERRABLE INITIALLY DEFERRED;
