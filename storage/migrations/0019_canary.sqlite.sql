-- The history of a device may say that it was pardoned. As in step 16, the text of the constraint is
-- edited where the schema is kept.

PRAGMA writable_schema = ON;
UPDATE sqlite_master SET
    sql = REPLACE(
        sql,
        'IN (''given'', ''revoked'', ''barred'')',
        'IN (''given'', ''revoked'', ''barred'', ''pardoned'')'
    )
WHERE type = 'table' AND name = 'exit_consents';
PRAGMA writable_schema = RESET;
