"""Commands: the members of the staff: accounts, logins, factors and keys."""
