"""The process among others: sockets, logs, metrics, access records, keys, the service manager."""
