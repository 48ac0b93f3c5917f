"""Credits: amounts, the ledger of accounts, and the audit of the books."""
