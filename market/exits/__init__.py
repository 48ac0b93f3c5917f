"""Exits: consent, wishes of buyers, canaries, earnings and payouts."""
