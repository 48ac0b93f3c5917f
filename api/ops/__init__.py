"""Routes for operators: health and metrics."""
