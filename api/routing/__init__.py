"""Routes: their declaration, callers, JSON, lists, streams and pages."""
