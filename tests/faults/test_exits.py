"""The agent of an exit, a process of its own, dies in every way: labels continue, or fail."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.base.brief import brief
from support.base.ports import free_port
from support.base.waiting import until
from support.clients.socks import Client, request
from support.clients.story import buy, reached
from support.daemons.service import Service, running_in
from support.database.forwarder import Forwarder
from support.exits.device import EXITS, NO_LIMITS, Consented, consented, listener_of
from support.targets import targets

from proxyctl.exit.base import names, record
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyd.ops.processes.listening import bound_port

HOST_UNREACHABLE = 4
FOLDER = Path(__file__).parents[1]
# In which a label has to be elsewhere; a dial that takes longer is over. The most patience with an
# exit and the silence after it are two seconds of it.
DIAL = {"dial_seconds": 3.5}


@asynccontextmanager
async def agent_of(
    service: Service, device: Consented, folder: Path, port: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the agent of a device, which finds the daemon at a port, and may reach this machine."""
    assert service.daemon.exit_port is not None
    door = service.daemon.exit_port.door()
    assert door is not None
    agreement = Consent(
        api=service.url,
        host="127.0.0.1",
        port=port,
        pin=door.certificate_sha256,
        token=device.first.token,
        terms=device.first.terms,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=DeviceLimits(bytes_per_day=0, connections=1000),
    )
    folder.mkdir()
    record.save(folder / names.CONSENT, agreement)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.exits.agent",
        str(folder),
        "all",
        env=os.environ | {"PYTHONPATH": str(FOLDER)},
    )
    try:
        await attached(service, device)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.send_signal(signal.SIGCONT)
        await process.wait()


async def attached(service: Service, device: Consented) -> None:
    """Wait until a device can carry a connection to any port."""
    listener = listener_of(service)
    await until(lambda: device.device_id in listener.roster.by_device, "it is attached")
    exit_ = listener.roster.by_device[device.device_id]
    exit_.grant(NO_LIMITS)  # targets of tests are at any port
    listener.roster.control_of(exit_).send(NO_LIMITS)
    await until(lambda: len(exit_.pool) > 0, "a connection waits")


async def refusal(service: Service, username: str, password: str, port: int) -> int:
    """Ask for a target by SOCKS5, and return the reply."""
    client = await Client.open(service.proxy_port)
    assert await client.log_in(username, password) == 0
    await client.send(request("127.0.0.1", port))
    reply = await client.reply()
    await client.close()
    return reply[0]


@pytest.mark.parametrize("wishes", brief(["", "-strict"]), ids=["soft", "strict"])
@pytest.mark.parametrize("end", ["killed", "frozen", "cut off"])
async def test_a_label_whose_exit_dies(tmp_path: Path, end: str, wishes: str) -> None:
    async with (
        running_in(tmp_path, **EXITS, limits=DIAL) as service,
        targets.echo() as target,
    ):
        port = bound_port(service.daemon.listeners.exits)
        first, second = await consented(service), await consented(service)
        with Forwarder.running(f"postgresql://x@127.0.0.1:{port}/x") as line:
            through = urlsplit(line.url).port
            assert through is not None
            async with agent_of(service, first, tmp_path / "agent", through) as process:
                service.wishes = f"-country-xx-session-label{wishes}"
                _, bought = await buy(service)
                client = await reached(service, bought, target)
                await client.send(b"words")
                assert await client.receive(5) == b"words"
                other = await second.attach(service, "127.0.0.2")
                if end == "cut off":
                    line.freeze()
                else:
                    process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGSTOP)
                if wishes:
                    if end == "killed":
                        await until(lambda: len(listener_of(service)) == 1, "it is gone")
                    shown = bought.username, bought.password
                    assert await refusal(service, *shown, target.port) == HOST_UNREACHABLE
                    assert other.dials == []
                else:
                    again = await reached(service, bought, target)
                    await again.send(b"more words")
                    assert await again.receive(10) == b"more words"
                    assert len(other.dials) == 1
                    await again.close()
                await client.close()
        await other.kill()


async def test_a_label_goes_on_after_the_daemon_was_started_again(tmp_path: Path) -> None:
    port = free_port()
    exits = EXITS | {"exits": EXITS["exits"] | {"port": port}}
    async with running_in(tmp_path, **exits) as service, targets.echo() as target:
        device = await consented(service)
        running = agent_of(service, device, tmp_path / "agent", port)
        await running.__aenter__()
        service.wishes = "-country-xx-session-label-strict"
        person, bought = await buy(service)
        client = await reached(service, bought, target)
        await client.send(b"words")
        assert await client.receive(5) == b"words"
        await client.close()
    async with running_in(tmp_path, **exits) as service, targets.echo() as target:
        await attached(service, device)
        client = await reached(service, bought, target)
        await client.send(b"words")
        assert await client.receive(5) == b"words"
        await client.close()
        await service.end(person, bought)
        await service.assert_audit()
        await running.__aexit__(None, None, None)
