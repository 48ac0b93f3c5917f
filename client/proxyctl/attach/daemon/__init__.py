"""Connections to a daemon: control, TLS, and connections that bring one ticket."""
