-- Particulars of buyers for their invoices.

-- What a user wants on the next documents; `address` has one to four lines, `country` a code of ISO 3166.
CREATE TABLE buyer_particulars (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    country TEXT NOT NULL,
    tax_number TEXT NOT NULL,
    changed_at BIGINT NOT NULL,
    CONSTRAINT buyer_particulars_whole CHECK (name <> '' AND address <> '' AND country <> '')
);

-- The particulars on the day of the payment: all empty on a receipt, and filled in on an invoice.
ALTER TABLE receipts ADD COLUMN buyer_name TEXT NOT NULL DEFAULT '';
ALTER TABLE receipts ADD COLUMN buyer_address TEXT NOT NULL DEFAULT '';
ALTER TABLE receipts ADD COLUMN buyer_country TEXT NOT NULL DEFAULT '';
ALTER TABLE receipts ADD COLUMN buyer_tax_number TEXT NOT NULL DEFAULT '';
