"""The routes of payments, and the notices of providers."""
