"""Routes of events and webhooks."""
