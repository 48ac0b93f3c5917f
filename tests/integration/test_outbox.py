"""kill -9 while e-mails wait: each arrives, once, when the daemon and the mail server are back."""

import asyncio
import re
import signal

import pytest
from support.base.ports import free_port
from support.base.waiting import until
from support.daemons.process import Process
from support.targets.mailbox import Mailbox, smtp, until_no_email_waits

from storage.engines.open import open_store
from storage.engines.store import Store, Transaction

ADA = {"username": "ada", "email": "ada@example.com", "password": "a first password"}
LINK = re.compile(r"/(verify|reset)\?token=([\w-]+)")


def started(url: str, mail_port: int) -> Process:
    daemon = Process(
        url,
        PROXYD_MAIL__HOST="127.0.0.1",
        PROXYD_MAIL__PORT=str(mail_port),
        PROXYD_MAIL__TLS="none",
    )
    return daemon.wait_ready()


def asked(daemon: Process, path: str, body: dict[str, str]) -> None:
    status, answer = daemon.call("POST", path, body)
    assert status == 200, answer


async def nothing_is_in_hand(store: Store) -> bool:
    async def count(tx: Transaction) -> int | None:
        return await tx.one(int, "SELECT COUNT(*) FROM outbox WHERE claimed_at IS NOT NULL")

    return not await store.read(count)


@pytest.mark.both_engines
async def test_waiting_letters_survive_a_kill_and_arrive_once(store_url: str) -> None:
    mailbox, store = Mailbox(), await open_store(store_url)
    port = free_port()
    daemon = await asyncio.to_thread(started, store_url, port)
    await asyncio.to_thread(asked, daemon, "/auth/register", ADA)
    await until(lambda: "mail server unavailable" in daemon.output)
    await until(lambda: nothing_is_in_hand(store))
    await asyncio.to_thread(asked, daemon, "/auth/password/forgot", {"email": ADA["email"]})
    await asyncio.to_thread(daemon.stop, signal.SIGKILL)
    async with smtp(mailbox, port=port):
        daemon = await asyncio.to_thread(started, store_url, port)
        try:
            await until(lambda: len(mailbox.emails) == 2)
            await until_no_email_waits(store)
            links = dict(LINK.findall("".join(each.get_content() for each in mailbox.emails)))
            new = {"token": links["reset"], "password": "a second password"}
            await asyncio.to_thread(asked, daemon, "/auth/verify", {"token": links["verify"]})
            await asyncio.to_thread(asked, daemon, "/auth/password/reset", new)
            await until(lambda: len(mailbox.emails) == 3, "the owner reads of the new password")
        finally:
            await asyncio.to_thread(daemon.stop)
    await store.close()
    assert mailbox.recipients == [[ADA["email"]]] * 3
