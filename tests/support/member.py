"""The program of `process.Member`: `python -m tests.support.member serve`.

On SQLite nobody has claimed the database for several such processes, as the one that starts them
does otherwise. On PostgreSQL it is `proxyd` itself.
"""

import sys
from typing import Any

from proxyd import build
from proxyd.__main__ import main
from storage.open import open_store
from storage.store import Store


async def open_shared(url: str, **options: Any) -> Store:
    """Open a store that others have open, too."""
    return await open_store(url, **{**options, "is_shared": True})


if __name__ == "__main__":
    build.open_store = open_shared
    sys.exit(main())
