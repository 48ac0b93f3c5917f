-- The history of a device may say that it was pardoned.

ALTER TABLE exit_consents DROP CONSTRAINT exit_consents_known_event;
ALTER TABLE exit_consents ADD CONSTRAINT exit_consents_known_event
    CHECK (event IN ('given', 'revoked', 'barred', 'pardoned'));
