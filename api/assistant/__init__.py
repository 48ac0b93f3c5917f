"""Routes of the assistant."""
