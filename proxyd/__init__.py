"""The process: a proxy that sells bandwidth by the byte, and the HTTP API of the marketplace."""
