"""kill -9 during a backup, a restoration, a move: nothing is half done; a repetition works."""

import asyncio
import os
import signal
from pathlib import Path

import asyncpg
import pytest
from support.base.waiting import until
from support.daemons import process
from support.daemons.backed_up import wait_for_a_new_name
from support.daemons.forked import ForkedProcess
from support.database import grown, sqlite

from proxyd.backups import manifest
from storage.backups import postgres_rows

LARGE_BYTES = 200_000_000


def begun(url: str, *arguments: str, **settings: str) -> ForkedProcess:
    """Start a command."""
    with Path(os.devnull).open("r+b") as nothing:
        standard = [nothing.fileno()] * 3
        started = process.command(url, arguments, standard, **settings)
    assert isinstance(started, ForkedProcess)
    return started


def killed(command: ForkedProcess) -> None:
    """Kill a command that has not ended."""
    assert command.poll() is None
    command.send_signal(signal.SIGKILL)
    assert command.wait(60) == -signal.SIGKILL


def carried_out(url: str, *arguments: str, **settings: str) -> str:
    """Run a command to its end, and return its output."""
    done = process.run(url, *arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_killed_backup_leaves_the_earlier_one(
    store_url: str, engine: str, tmp_path: Path
) -> None:
    folder, pipe = tmp_path / "backups", tmp_path / "certificate"
    process.funded(store_url)
    arguments = ("backup", "--all", str(folder), "--keep", "1")
    await asyncio.to_thread(carried_out, store_url, *arguments)
    (first,) = folder.iterdir()
    await asyncio.to_thread(wait_for_a_new_name, folder)
    # The command waits for the writer of a pipe, with the database copied.
    os.mkfifo(pipe)
    tls = {"PROXYD_API__TLS_CERT": str(pipe), "PROXYD_API__TLS_KEY": str(pipe)}
    command = begun(store_url, *arguments, **tls)
    await until(lambda: list(folder.glob("*.partial/database/*")), "the database is copied")
    killed(command)
    assert manifest.read(first)
    assert len(list(folder.iterdir())) == 2
    await asyncio.to_thread(wait_for_a_new_name, folder)
    await asyncio.to_thread(carried_out, store_url, *arguments)
    (second,) = folder.iterdir()
    assert second != first
    assert manifest.read(second)


@pytest.mark.long
async def test_a_killed_restoration_is_repeated(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path)
    process.funded(url)
    blob = tmp_path / "work" / "blobs" / "large"
    blob.parent.mkdir(parents=True)
    with blob.open("wb") as file:
        file.truncate(LARGE_BYTES)
    output = await asyncio.to_thread(carried_out, url, "backup", "--all", str(tmp_path / "backups"))
    arguments = ("restore", output.partition(":")[0], str(tmp_path / "new"))
    command = begun(url, *arguments)
    half = tmp_path / ".new.proxyd-restore" / "work" / "blobs" / "large"
    await until(half.exists, "files are restored")
    killed(command)
    assert not (tmp_path / "new").exists()
    assert "the ledger agrees" in await asyncio.to_thread(carried_out, url, *arguments)
    assert not (tmp_path / ".new.proxyd-restore").exists()
    process.assert_audit(f"sqlite:///{tmp_path}/new/proxyd.db")


@pytest.mark.long
async def test_a_killed_move_leaves_the_target_empty(empty_postgres: str, tmp_path: Path) -> None:
    url = sqlite.database(tmp_path)
    await grown.grow(url, 20_000)
    arguments = ("storage", "move", "--to", empty_postgres)
    admin = await asyncpg.connect(empty_postgres)

    async def others(words: str = "") -> int:
        sql = """
            SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND query LIKE $1 || '%'
        """
        return int(await admin.fetchval(sql, words))

    try:
        command = begun(url, *arguments)
        await until(lambda: others("COPY"), "rows are on their way")
        killed(command)

        async def are_gone() -> bool:
            return not await others()

        await until(are_gone, "the server has rolled back")
        async with postgres_rows.connected(empty_postgres) as connection:
            assert await postgres_rows.tables(connection) == ()
    finally:
        await admin.close()
    output = await asyncio.to_thread(carried_out, url, *arguments)
    assert "the ledger agrees" in output
    assert f'auth.signing_key_file = "{tmp_path}' not in output  # the key is in the settings
    assert f'work.folder = "{tmp_path}/work"' in output
