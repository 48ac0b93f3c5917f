"""The catalogue of events, their record, and the replies of repeated requests."""
