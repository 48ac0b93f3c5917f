"""Routes of worker devices: tokens, work, supply and reputations."""
