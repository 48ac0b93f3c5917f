"""The access log: its lines and files, its search, and the counts of the rules against abuse."""
