"""Where the protocols' tests have their files."""

from support.base.memory import memory_path

__all__ = ["memory_path"]
