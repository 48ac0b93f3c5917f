"""Metrics: the daemon's counters in Prometheus' format, from one process or several."""
