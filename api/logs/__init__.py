"""Routes of logs."""
