"""Users, their passwords, logins and API keys, the spending of keys, and e-mails to users."""
