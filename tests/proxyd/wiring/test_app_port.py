"""The listener of apps as the daemon runs it."""

import socket
from typing import Any, cast

import pytest
from support.base.waiting import until

from proxyd.exits.dialling.orders import BUSY, TunnelError
from proxyd.wiring import app_port
from proxyd.wiring.app_port import AppPort, JobStreams
from proxyd.wiring.tasks import Tasks
from storage.engines.errors import UnavailableError


class Server:
    """Fails at its first sweeps."""

    def __init__(self) -> None:
        self.sweeps = 0

    async def sweep(self) -> int:
        self.sweeps += 1
        if self.sweeps == 1:
            raise UnavailableError("away")
        if self.sweeps == 2:
            raise ValueError("a mistake")
        return 0


async def test_every_daemon_sweeps_its_own_streams_after_any_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    with socket.socket() as sock:
        port = AppPort(cast(Any, server), sock, None, sweep_seconds=0.001)
        tasks = Tasks(lambda: False)  # another daemon has the sweeps of the database
        port.spawn_tasks(tasks)
        await until(lambda: server.sweeps > 3)
        await tasks.end()
    assert "wait for the store" in caplog.text
    assert "a sweep of apps failed" in caplog.text


async def test_why_there_is_no_stream_is_passed_on() -> None:
    class Busy:
        async def open(self, *_: object) -> socket.socket:
            raise TunnelError(BUSY)

        def is_attached(self, device_id: str) -> bool:
            return True

    for tunnels, reason in ((None, "away"), (Busy(), "busy")):
        streams = JobStreams(cast(Any, tunnels))
        with pytest.raises(app_port.UnreachedError) as refused:
            await streams("device", "job", 1, 80, 1.0, "buyer")
        assert refused.value.reason == reason
