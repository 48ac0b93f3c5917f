"""Where the API's tests have their files."""

from support.memory import memory_path

__all__ = ["memory_path"]
