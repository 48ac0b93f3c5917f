-- A document that was issued never changes.
CREATE FUNCTION refuse_receipt_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'receipts_are_never_changed'
        USING ERRCODE = 'integrity_constraint_violation',
            CONSTRAINT = 'receipts_are_never_changed';
END
$$;
CREATE TRIGGER receipts_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON receipts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_receipt_change();
