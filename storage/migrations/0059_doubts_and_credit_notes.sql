-- Payments that the operator accepts as they are, and credit notes of refunds.

-- The micro-USD that the operator accepts of a doubtful payment. The next look at the provider credits
-- them.
ALTER TABLE payments ADD COLUMN accepted BIGINT CONSTRAINT payments_accepted CHECK (accepted > 0);

-- A credit note of each refund that was made, with a number without gaps. Its particulars are those of
-- the receipt. A refund that the card refused later cancels its note.
CREATE TABLE credit_notes (
    number BIGINT PRIMARY KEY,
    return_id TEXT NOT NULL UNIQUE REFERENCES payment_returns (id),
    receipt_number BIGINT NOT NULL REFERENCES receipts (number),
    amount BIGINT NOT NULL,
    issued_at BIGINT NOT NULL,
    cancelled_at BIGINT,
    CONSTRAINT credit_notes_numbered CHECK (number > 0 AND amount > 0)
);
CREATE TABLE credit_note_numbers (
    id TEXT PRIMARY KEY,
    latest BIGINT NOT NULL,
    CONSTRAINT credit_note_numbers_is_one CHECK (id = 'credit_notes')
);
INSERT INTO credit_note_numbers (id, latest) VALUES ('credit_notes', 0);
