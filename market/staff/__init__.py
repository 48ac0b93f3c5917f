"""Staff: their accounts and roles, their acts with a log, and the search for users."""
