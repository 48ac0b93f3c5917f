"""The end of an account by the staff: closed, or erased."""
