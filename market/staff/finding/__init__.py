"""Search for users, their pages and their history."""
