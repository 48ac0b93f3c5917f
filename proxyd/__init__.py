"""The process: a proxy that sells bandwidth by the byte, and the HTTP API of the marketplace."""

__version__ = "0.1.0"  # pyproject.toml takes it from here
