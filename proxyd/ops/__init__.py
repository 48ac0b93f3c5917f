"""What the operator and the service manager see: sockets, logs, metrics, records, keys."""
