"""Notices to users: the feed of events, webhooks, and the live use of sessions."""
