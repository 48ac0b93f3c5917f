"""The program of `process.Member`: `python -m tests.support.daemons.member serve`.

On SQLite no supervisor has claimed the database for several such processes, as `proxyd serve` does
otherwise. On PostgreSQL it is `proxyd` itself.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from proxyd import __main__
from proxyd.cli import commands
from storage.engines.open import open_store
from storage.engines.store import Store


async def open_shared(url: str, **options: Any) -> Store:
    """Open a store that other processes have open."""
    return await open_store(url, **{**options, "is_shared": True})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, as `proxyd` does."""
    commands.import_servers()
    import_module("proxyd.wiring.build").open_store = open_shared
    return __main__.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
