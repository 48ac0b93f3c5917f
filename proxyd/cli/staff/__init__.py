"""Commands of the staff: find and show users, and administer members."""
