"""Routes of exits."""
