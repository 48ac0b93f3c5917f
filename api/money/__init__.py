"""The routes of the wallet."""
