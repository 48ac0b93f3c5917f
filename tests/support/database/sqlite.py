"""SQLite files of the present schema, from bytes that were made once."""

import tempfile
from functools import cache
from pathlib import Path

from storage.engines.open import open_store
from support.base.aside import run_aside


def database(folder: Path) -> str:
    """Return the URL of a database in a folder; where none is yet, of one without data."""
    path = folder / "proxyd.db"
    if folder.is_dir():
        make(path)
    return f"sqlite:///{path}"


def make(path: Path) -> None:
    """Make a database without data at a path, unless there is one."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(empty())


@cache
def empty() -> bytes:
    """Return the bytes of a database without data."""

    async def migrate(url: str) -> None:
        store = await open_store(url)
        await store.close()

    with tempfile.TemporaryDirectory(prefix="proxyd-sqlite-") as folder:
        path = Path(folder) / "proxyd.db"
        run_aside(migrate(f"sqlite:///{path}"))  # a test's loop may be running in this thread
        return path.read_bytes()
