"""SQLite files of the present schema, from bytes that were made once."""

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from storage.open import open_store


def database(folder: Path) -> str:
    """Return the URL of a database in a folder; where none is yet, of one without data."""
    path = folder / "proxyd.db"
    if folder.is_dir() and not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(_empty())
    return f"sqlite:///{path}"


@cache
def _empty() -> bytes:
    async def make(url: str) -> None:
        store = await open_store(url)
        await store.close()

    with tempfile.TemporaryDirectory(prefix="proxyd-sqlite-") as folder:
        path = Path(folder) / "proxyd.db"
        with ThreadPoolExecutor(1) as thread:  # a test's loop is running in this one
            thread.submit(asyncio.run, make(f"sqlite:///{path}")).result()
        return path.read_bytes()
