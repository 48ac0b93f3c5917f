"""Routes of payouts."""
