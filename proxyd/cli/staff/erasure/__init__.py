"""Commands that export, close and erase an account."""
