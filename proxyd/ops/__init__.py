"""Operation of the daemon: logs, metrics, access log, checks, watches, the service manager."""
