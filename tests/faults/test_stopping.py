"""Stopping ends, and writes the last counts, even if a library loses a cancellation."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.base.waiting import until
from support.daemons.service import running_in
from support.targets.mailbox import Mailbox, smtp

from proxyd.loop import cancellation
from proxyd.outbound.mailer import Mailer


async def test_a_daemon_stops_while_an_email_is_being_sent(tmp_path: Path) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        mail = {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "proxyd@example.com"}
        async with running_in(tmp_path, mail=mail) as service:
            await service.call(
                "POST",
                "/auth/register",
                {"username": "ada", "email": "ada@example.com", "password": "correct horse"},
            )
            while not mailbox.emails:
                await asyncio.sleep(0)
            async with asyncio.timeout(30):
                await service.daemon.drain()


async def test_a_daemon_stops_though_a_task_ignores_every_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellation, "ATTEMPT_SECONDS", 0.05)
    let_go = asyncio.Event()

    async def deaf(_mailer: Mailer) -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    monkeypatch.setattr(Mailer, "run", deaf)
    async with running_in(tmp_path) as service:
        stopped: list[str] = []
        stop = service.daemon.core.meter.stop

        async def noted() -> None:
            stopped.append(caplog.text)
            await stop()

        monkeypatch.setattr(service.daemon.core, "meter", SimpleNamespace(stop=noted))
        async with asyncio.timeout(30):
            await service.daemon.drain()
        assert "the task mail ignores every cancellation" in caplog.text
        assert len(stopped) == 1
        assert "ignores" not in stopped[0]  # the last counts came first
        let_go.set()
        await until(lambda: "mail" not in {task.get_name() for task in asyncio.all_tasks()})
