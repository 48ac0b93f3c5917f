"""The members of the staff: accounts, logins, factors and keys."""
