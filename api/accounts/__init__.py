"""Routes of accounts, API keys, referrals and device logins."""
