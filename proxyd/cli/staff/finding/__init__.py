"""Commands: search for users, their pages and their history."""
