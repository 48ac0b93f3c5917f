"""Long answers to slow readers: cut once the login, key or token is over, and whole until then."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.waiting import until
from support.daemons.bounded import api_bounds
from support.daemons.service import Person, Service, running_in
from support.workers.artifacts import announced, as_device, as_person, upload

from api.bandwidth import usage
from market.accounts.scopes import Scope
from storage.engines.errors import UnavailableError

LARGE = bytes(range(256)) * 64 * 1024  # 16 MB: several times the size of two sockets' buffers
ALL = "/api/usage.csv"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A daemon that checks often whether the login of a request goes on."""
    async with running_in(tmp_path, bounds=api_bounds(login_check_seconds=0.05)) as running:
        yield running
        await running.assert_audit()


class Reader:
    """A client that has the head of an answer, and reads the rest of it in `rest`."""

    def __init__(self, reader: asyncio.StreamReader, head: bytes) -> None:
        self._reader = reader
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        self.status = int(head.split(b" ", 2)[1])
        self.size = int(fields["Content-Length"])

    async def rest(self) -> int:
        """Read to the end of the connection or of the answer. Return the number of bytes."""
        size = 0
        async with asyncio.timeout(30):
            try:
                while size < self.size and (piece := await self._reader.read(1 << 20)):
                    size += len(piece)
            except ConnectionResetError:
                pass
        return size


@asynccontextmanager
async def reading(service: Service, path: str, who: dict[str, str]) -> AsyncIterator[Reader]:
    """Ask for something large through a small socket."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", service.api_port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    lines = "".join(f"{name}: {value}\r\n" for name, value in who.items())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    try:
        yield Reader(reader, await reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.transport.abort()


async def cut(service: Service) -> None:
    """Wait until no client is connected but the one that asks for things in this test."""
    await until(lambda: service.daemon.http.connections <= 1, "the reader is cut")


async def key_of(service: Service, me: Person) -> dict[str, Any]:
    body = {"name": "x", "scopes": [Scope.JOBS_READ, Scope.USAGE_READ]}
    return dict((await service.call("POST", "/api/keys", body, token=me.token)).body)


@pytest.mark.parametrize("how", ["revoked", "logged out"])
async def test_a_file_is_read_no_longer_than_the_key_or_login_lasts(
    service: Service, how: str
) -> None:
    me = await service.person()
    artifact = await upload(service, as_person(me), LARGE)
    key = await key_of(service, me)
    who = as_person(me) if how == "logged out" else {"Authorization": f"Bearer {key['key']}"}
    async with reading(service, f"/api/artifacts/{artifact}", who) as reader:
        assert (reader.status, reader.size) == (200, len(LARGE))
        if how == "revoked":
            path = f"/api/keys/{key['key_id']}/revoke"
            assert (await service.call("POST", path, token=me.token)).status == 200
        else:
            assert (await service.call("POST", "/auth/logout", token=me.token)).status == 200
        await cut(service)
        assert await reader.rest() < len(LARGE)


async def test_a_file_is_read_by_a_device_no_longer_than_its_token_lasts(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    job_id = (await service.call("POST", "/api/jobs", job, token=buyer.token)).body["job_id"]
    made = await service.call("POST", "/api/worker/token/create", {"name": "r"}, token=owner.token)
    device = as_device(made.body["token"])
    assert (await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)).status == 200
    where = f"/api/worker/jobs/{job_id}/artifacts"
    saved = await upload(service, device, LARGE, where, attempt=1, kind="checkpoint")
    async with reading(service, f"/api/worker/artifacts/{saved}", device) as reader:
        assert reader.status == 200
        revoked = {"token_id": made.body["token_id"]}
        answer = await service.call("POST", "/api/worker/token/revoke", revoked, token=owner.token)
        assert answer.status == 200
        await cut(service)
        assert await reader.rest() < len(LARGE)


@asynccontextmanager
async def sending(service: Service, path: str, who: dict[str, str]) -> AsyncIterator[None]:
    """Send the beginning of a file, and wait until it is taken; the rest never comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in who.items())
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Type: x/y\r\n{lines}"
    # A mebibyte: its sender may be silent for a minute.
    writer.write(f"{head}Content-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE[: 1 << 20])
    try:
        received = service.daemon.market.artifacts.traffic
        await until(lambda: received.received_bytes >= 1 << 20, "the beginning is here")
        yield
        assert await reader.read() == b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("how", ["revoked", "logged out"])
async def test_a_file_is_sent_no_longer_than_the_key_or_login_lasts(
    service: Service, how: str
) -> None:
    me = await service.person()
    path = "/api/artifacts"
    body = announced(LARGE)
    upload = (await service.call("POST", path, body, token=me.token)).body["upload"]["url"]
    key = (
        await service.call(
            "POST", "/api/keys", {"name": "x", "scopes": [Scope.JOBS_WRITE]}, token=me.token
        )
    ).body
    who = as_person(me) if how == "logged out" else {"Authorization": f"Bearer {key['key']}"}
    async with sending(service, upload, who):
        end = "/auth/logout" if how == "logged out" else f"/api/keys/{key['key_id']}/revoke"
        assert (await service.call("POST", end, token=me.token)).status == 200
        await cut(service)


async def test_a_file_is_sent_by_a_device_no_longer_than_its_token_lasts(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    job_id = (await service.call("POST", "/api/jobs", job, token=buyer.token)).body["job_id"]
    made = await service.call("POST", "/api/worker/token/create", {"name": "r"}, token=owner.token)
    device = as_device(made.body["token"])
    assert (await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)).status == 200
    where, body = f"/api/worker/jobs/{job_id}/artifacts", announced(LARGE, attempt=1)
    upload = (await service.call("POST", where, body, headers=device)).body["upload"]["url"]
    async with sending(service, upload, device):
        revoked = {"token_id": made.body["token_id"]}
        answer = await service.call("POST", "/api/worker/token/revoke", revoked, token=owner.token)
        assert answer.status == 200
        await cut(service)


async def test_a_large_table_is_read_no_longer_than_the_key_lasts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_cells", lambda _: ((LARGE[:64].hex(),) for _ in range(100_000)))
    http = service.daemon.http
    http.change_limits(replace(http._limits, memory_per_network=64 << 20))
    me = await service.person()
    key = await key_of(service, me)
    who = {"Authorization": f"Bearer {key['key']}"}
    async with reading(service, ALL, who) as reader:
        assert reader.size > 10_000_000
        await service.call("POST", f"/api/keys/{key['key_id']}/revoke", token=me.token)
        await cut(service)
        assert await reader.rest() < reader.size


async def test_a_file_is_whole_for_a_slow_reader_also_while_the_store_is_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await service.person()
    artifact = await upload(service, as_person(me), LARGE)
    checks = []

    async def away(caller: object) -> bool:
        checks.append(caller)
        raise UnavailableError("away")

    monkeypatch.setattr(service.daemon.http, "_is_current", away)
    async with reading(service, f"/api/artifacts/{artifact}", as_person(me)) as reader:
        await until(lambda: len(checks) > 2, "it is looked at again and again")
        assert await reader.rest() == len(LARGE)
    size = len(checks)
    await service.call("GET", "/healthz")
    assert len(checks) <= size + 1
