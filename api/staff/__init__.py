"""The staff API: logins, the search, users, notes, members and keys."""
