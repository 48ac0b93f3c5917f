-- A document that was issued never changes.
CREATE TRIGGER receipts_never_updated BEFORE UPDATE ON receipts BEGIN
    SELECT RAISE(ABORT, 'receipts_are_never_changed');
END;
CREATE TRIGGER receipts_never_deleted BEFORE DELETE ON receipts BEGIN
    SELECT RAISE(ABORT, 'receipts_are_never_changed');
END;
