"""Queries on users, API keys, logins of devices, referrals and e-mails."""
