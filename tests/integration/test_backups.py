"""A service with traffic is backed up, its machine dies, and it is restored elsewhere and held."""

import asyncio
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.base.ports import free_port
from support.base.waiting import until, until_true
from support.daemons import process
from support.daemons.backed_up import wait_for_a_new_name
from support.daemons.process import Process
from support.daemons.service import running_in
from support.targets import threads
from support.targets.mailbox import Mailbox, smtp

from storage.backups import restorations
from storage.engines.open import open_store
from storage.engines.store import Transaction

ADA = {"username": "ada", "email": "ada@example.com", "password": "a first password"}
SENT_OR_SWEPT = ("mail", "webhooks", "expiry", "payouts of exits", "reviews", "pending bonuses")


@contextmanager
def traffic(daemon: Process, token: str, target: int) -> Iterator[list[int]]:
    """Buy sessions and fetch through them until the end of the block; yield the bytes of each."""
    over, fetched = threading.Event(), [0]

    def client() -> None:
        while not over.is_set():
            proxy = daemon.buy(token, 0.01)["proxy"]
            with process.proxied(daemon, proxy, target) as connection:
                connection.sendall(b"GET /bytes/20000 HTTP/1.1\r\nConnection: close\r\n\r\n")
                while data := connection.recv(65536):
                    fetched[0] += len(data)

    clients = [threading.Thread(target=client) for _ in range(3)]
    for each in clients:
        each.start()
    try:
        yield fetched
    finally:
        over.set()
        for each in clients:
            each.join()


def made(done: object) -> Path:
    """Return the folder of a backup from the command's report."""
    found = re.match(r"(\S+): \d+ files, ", done.stdout)  # type: ignore[attr-defined]
    assert found, done
    return Path(found[1])


def backed_up_and_killed(url: str, folder: Path, mail: dict[str, str]) -> tuple[Path, str, dict]:
    """Back up a daemon under load twice, kill it; return the last backup, a token, a session."""
    login = process.funded(url, "1000")
    with process.serving(url, **mail) as daemon, threads.web() as target:
        token = daemon.log_in(*login)
        kept = daemon.buy(token)
        status, answer = daemon.call("POST", "/auth/register", ADA)
        assert status == 200, answer
        with traffic(daemon, token, target.port) as fetched:
            until_true(lambda: fetched[0] > 0, "traffic")
            for _ in range(2):
                before = fetched[0]
                wait_for_a_new_name(folder)
                done = process.run(url, "backup", "--all", str(folder), **mail)
                assert done.returncode == 0, done.stderr
                until_true(lambda: fetched[0] > before, "traffic goes on")  # noqa: B023
        daemon.stop(signal.SIGKILL)
    assert len(list(folder.iterdir())) == 2
    return made(done), token, kept


async def test_a_dead_machine_is_restored_elsewhere(
    engine: str, store_url: str, empty_postgres: str, tmp_path: Path
) -> None:
    new, mailbox = tmp_path / "new", Mailbox()
    port = free_port()
    mail = {
        "PROXYD_MAIL__HOST": "127.0.0.1",
        "PROXYD_MAIL__PORT": str(port),
        "PROXYD_MAIL__TLS": "none",
    }
    backup, token, kept = await asyncio.to_thread(
        backed_up_and_killed, store_url, tmp_path / "backups", mail
    )
    if engine == "sqlite":
        for each in tmp_path.glob("proxyd.db*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        url, option = f"sqlite:///{new}/proxyd.db", []
    else:
        url, option = empty_postgres, ["--database", empty_postgres]
    done = await asyncio.to_thread(
        process.run, "sqlite:////none.db", "restore", str(backup), str(new), *option
    )
    assert done.returncode == 0, done.stderr
    assert "the ledger agrees" in done.stdout
    assert re.search(r"open then: \d+ sessions, 0 jobs; \d+ leases closed", done.stdout)
    assert "1 e-mails and 0 webhooks wait" in done.stdout
    assert await open_leases(url) == 0
    config = ("--config", str(new / "proxyd.toml"))
    async with smtp(mailbox, port=port):
        daemon = await asyncio.to_thread(served, url, config, token, kept, is_held=True)
        assert await asyncio.to_thread(daemon.stop) == 0
        assert mailbox.emails == []
        done = await asyncio.to_thread(process.run, url, "restore", "--confirm", *config)
        assert "confirmed" in done.stdout, done.stderr
        daemon = await asyncio.to_thread(served, url, config, token, kept, is_held=False)
        await until(lambda: len(mailbox.emails) == 1, "the waiting e-mail is sent")
        assert await asyncio.to_thread(daemon.stop) == 0
    process.assert_audit(url)


async def open_leases(url: str) -> int | None:
    """Return the number of leases that a database says are in use, and of its nodes."""

    async def count(tx: Transaction) -> int | None:
        return await tx.one(
            int,
            """
            SELECT (SELECT COUNT(*) FROM bandwidth_leases WHERE closed_at IS NULL)
                + (SELECT COUNT(*) FROM nodes)
            """,
        )

    store = await open_store(url)
    try:
        return await store.read(count)
    finally:
        await store.close()


def served(url: str, config: tuple[str, str], token: str, kept: dict, *, is_held: bool) -> Process:
    """Start a restored daemon, and check that it knows a login and a session of the backup."""
    daemon = Process(url, *config).wait_ready()
    assert ("is held" in daemon.output) == is_held
    assert daemon.call("GET", "/auth/me", token=token)[0] == 200
    with threads.web() as target:
        process.begin(daemon, kept["proxy"], target.port).close()
    return daemon


async def test_a_held_daemon_sends_pays_and_sweeps_nothing(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        url = service.daemon.settings.storage.url
        assert all(service.daemon.tasks.named(name) for name in SENT_OR_SWEPT)
    store = await open_store(url)
    await store.write(restorations.add, "r", copied_at=1, now=2)
    await store.close()
    async with running_in(tmp_path) as service:
        assert not any(service.daemon.tasks.named(name) for name in SENT_OR_SWEPT)
        person = await service.person(usd="10")
        await service.buy(person, quota=10**6)
    store = await open_store(url)
    assert await store.write(restorations.confirm, 3) == 1
    await store.close()
    async with running_in(tmp_path) as service:
        assert all(service.daemon.tasks.named(name) for name in SENT_OR_SWEPT)
