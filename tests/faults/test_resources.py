"""The machine has no more descriptors or no more memory: only the requests of that moment fail."""

import resource
import urllib.error
from pathlib import Path

import psutil
import pytest
from support.base.descriptors import none_left
from support.base.waiting import until, until_true
from support.clients.buyer import selling
from support.clients.socks import Client, tunnel
from support.daemons import process
from support.daemons.service import Service
from support.targets import targets

BODY_BYTES = 48_000_000
ROOM_BYTES = 40_000_000


async def test_without_descriptors_open_connections_go_on_and_are_written_down(
    service: Service,
) -> None:
    async with targets.echo() as target:
        person = await service.person(usd="10")
        bought = await service.buy(person)
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )

        async def exchange(size: int) -> None:
            await client.send(bytes(size))
            assert await client.receive(size) == bytes(size)

        async def is_written() -> bool:
            used = (await service.session(person, bought))["bytes_used"]
            return used == target.received + target.sent

        try:
            await exchange(1_000)
            with none_left():
                await exchange(50_000)
                await until(is_written, "it is counted, and the API answers who is connected")
                another = await service.buy(person)
            late = await Client.open(service.proxy_port)
            assert await late.log_in(another.username, another.password) == 0
            assert await late.connect(target.host, target.port) == 0
            await late.close()
        finally:
            await client.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs the limits of Linux")
def test_only_a_request_too_large_for_the_memory_fails(tmp_path: Path) -> None:
    # A body whose type has no limit can have the size that the operator permits.
    path, most = "/api/assistant/chat", str(64 * 1024 * 1024)
    settings = {
        "PROXYD_API__BODY_MAX_BYTES": most,
        "PROXYD_LIMITS__API_BYTES_PER_NETWORK": most,
    }
    with selling(tmp_path, **settings) as sell:
        buyer = sell()
        daemon = buyer.daemon
        running = psutil.Process(daemon.process.pid)
        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        limit = running.memory_info().vms + ROOM_BYTES
        resource.prlimit(running.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        body = {"message": "hi", "note": "x" * BODY_BYTES}
        try:
            status, answer = daemon.call("POST", path, body, buyer.token)
        except (urllib.error.URLError, ConnectionError):
            pass  # the transport itself had no room to answer
        else:
            assert (status, answer["error"]["code"]) == (500, "internal_error")
        until_true(lambda: daemon.call("GET", "/readyz")[0] == 200, "others are served")
        bought = daemon.buy(buyer.token)
        with process.proxied(daemon, bought["proxy"], int(daemon.api.rpartition(":")[2])) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.0 200 OK")
        resource.prlimit(running.pid, resource.RLIMIT_AS, no_limit)
        status, _ = daemon.call("POST", path, body, buyer.token)
        assert status == 200
