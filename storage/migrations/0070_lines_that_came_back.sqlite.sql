CREATE TRIGGER entries_add_earned_lines AFTER INSERT ON entries WHEN NEW.earned > 0 BEGIN
    INSERT INTO earned_lines (account, is_back, transfer_id)
    SELECT NEW.credit_account,
        CASE WHEN t.kind IN ('capture', 'payout', 'award') THEN 0 ELSE 1 END, NEW.transfer_id
    FROM transfers AS t WHERE t.id = NEW.transfer_id
    ON CONFLICT DO NOTHING;
END;
