"""proxyctl.worker.network.tunnel: requests of a daemon to a worker's device, and their limits."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until
from support.exits.device import Port, Sightings
from support.targets import targets

from proxyctl.protocol.frames import Dialled, DialOutcome, Open
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.network import doors
from proxyctl.worker.network.ports import Served
from proxyctl.worker.network.tunnel import USUAL, JobTunnel, TunnelBounds
from proxyctl.worker.task.allowance import Allowance
from proxyd.exits.attached.certificate import FILE_NAME, fingerprint
from proxyd.exits.dialling.orders import TunnelError
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.exits.dialling.workers import Worker

JOB = "01234567-89ab-cdef-0123-456789abcdef"
ATTEMPT = f"{JOB}-1"
TOKEN = "device"


@dataclass
class Device:
    """A device in the marketplace."""

    id: str
    user_id: str = "owner"


class Authority:
    """Takes every token for the name of a device."""

    origins = Sightings()

    async def authenticate(self, token: str) -> Device:
        return Device(token, f"owner of {token}")

    async def revoked_among(self, _: Sequence[str]) -> list[str]:
        return []

    async def listening_among(self, device_ids: Sequence[str]) -> list[str]:
        return list(device_ids)


class Place:
    """A daemon's port, and a device with a job in the same loop."""

    def __init__(self, folder: Path, bounds: TunnelBounds) -> None:
        self.port = Port(
            folder, make_workers=lambda reactor: DeviceTunnels(reactor, Authority(), 100, 15.0)
        )
        self.tunnels = self.port.workers
        self.door: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port.port,
            "certificate_sha256": fingerprint(folder / FILE_NAME),
        }
        self.failures: list[Exception] = []  # of the API, before it answers
        self.asked: list[str] = []
        self.connects: list[int] = []
        self.target = 0  # where the job listens
        self.outcomes: list[Dialled] = []
        self.pool = ThreadPoolExecutor(2)
        self.folder = folder
        self.allowance = self.allowing(bytes_per_day=1 << 40)
        self.device = JobTunnel(
            "http://127.0.0.1:1", TOKEN, self._ask, None, self.allowance, self.pool, bounds
        )

    def allowing(self, *, bytes_per_day: int) -> Allowance:
        """Return an allowance of a number of bytes a day, without a bound on the rate."""
        path = self.folder / "ports.json"
        return Allowance(path, bytes_per_day, 0, lambda: datetime.now(UTC), time.monotonic)

    def _ask(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.failures:
            raise self.failures.pop(0)
        return self.door

    def serve(self, *ports: int, attempt_id: str = ATTEMPT) -> None:
        """Have an attempt run on the device."""
        self.device.serve(Served(attempt_id, ports, None, self._connect, lambda: None))

    def _connect(self, port: int) -> socket.socket:
        self.connects.append(port)
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", self.target))
        return sock

    @property
    def worker(self) -> Worker:
        """The daemon's side of its control connection."""
        return self.tunnels._workers._by_device[TOKEN]

    async def attach(self, *ports: int) -> None:
        self.serve(*ports)
        await until(lambda: self.tunnels.is_attached(TOKEN), "it attaches")

    async def outcome(self, **changes: Any) -> DialOutcome:
        """Ask for a stream as a daemon that lies would, and return the device's answer."""
        wish = {"number": 7, "ticket": bytes(16), "job_id": JOB, "attempt": 1, "port": 8888}
        answers: list[Dialled] = []
        act = self.worker._act

        def hear(frame: Any) -> None:
            if isinstance(frame, Dialled):
                answers.append(frame)
            act(frame)

        self.worker._act = hear  # type: ignore[method-assign]
        self.worker.send(Open(**{**wish, **changes}))
        await until(lambda: bool(answers), "an answer")
        assert answers[0].number == 7
        return answers[0].outcome

    async def open(self, port: int = 8888) -> socket.socket:
        return await self.tunnels.open(TOKEN, JOB, 1, port, 20, "buyer")

    async def close(self) -> None:
        await self.device.close()
        assert self.device.streams == 0
        await self.port.close()
        self.pool.shutdown()


@pytest.fixture
def bounds() -> TunnelBounds:
    return USUAL


def bounded(**bounds: Any) -> pytest.MarkDecorator:
    """Give the device's tunnel these bounds (`TunnelBounds`)."""
    return pytest.mark.parametrize("bounds", [TunnelBounds(**bounds)], ids=["bounded"])


@pytest.fixture
async def place(
    tmp_path: Path, bounds: TunnelBounds, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.setattr(doors.Retries, "failed", lambda *_: 0.01)
    made = Place(tmp_path, bounds)
    yield made
    await made.close()


async def test_a_stream_goes_where_the_job_listens(place: Place) -> None:
    async with targets.echo() as target:
        place.target = target.port
        await place.attach(8888)
        assert place.asked == ["/api/worker/tunnel"]
        with await place.open() as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"words")
            assert await loop.sock_recv(sock, 5) == b"words"
            place.device.forget(ATTEMPT)  # the attempt has ended
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(sock, 5)
        await until(lambda: not place.tunnels.is_attached(TOKEN), "it is attached no more")
        await until(lambda: target.ended + target.resets == 1)


async def test_a_daemon_reaches_only_declared_ports_of_running_jobs(place: Place) -> None:
    await place.attach(8888, 9999)
    assert await place.outcome(port=22) is DialOutcome.REFUSED
    assert await place.outcome(port=80) is DialOutcome.REFUSED
    assert await place.outcome(attempt=2) is DialOutcome.NOT_ALLOWED
    assert await place.outcome(job_id="192.168.1.1") is DialOutcome.NOT_ALLOWED
    assert await place.outcome(job_id="../" + JOB) is DialOutcome.NOT_ALLOWED
    assert place.connects == []


@bounded(streams_per_attempt=2)
async def test_a_flood_of_orders_for_one_attempt_is_bounded(place: Place) -> None:
    async with targets.echo() as target:
        place.target = target.port
        await place.attach(8888)
        streams = [await place.open() for _ in range(2)]
        with pytest.raises(TunnelError, match="busy"):
            await place.open()
        for each in streams:
            each.close()
        await until(lambda: place.device.streams == 0, "there is room again")
        (await place.open()).close()


@bounded(streams_max=0)
async def test_streams_of_all_attempts_are_bounded(place: Place) -> None:
    await place.attach(8888)
    with pytest.raises(TunnelError, match="busy"):
        await place.open()


async def test_nothing_waits_for_an_acknowledgement_that_is_delayed(place: Place) -> None:
    loop = asyncio.get_running_loop()
    async with targets.echo() as target:
        place.target = target.port
        await place.attach(8888)
        with await place.open() as stream:
            for _ in range(20):  # from some exchanges on the system delays them
                await loop.sock_sendall(stream, b"ping")
                assert await loop.sock_recv(stream, 4) == b"ping"
            [relay] = place.device._attempts[ATTEMPT].relays
            daemon, job = (
                end.transport.get_extra_info("socket")
                for end in (relay._work, relay._target)  # type: ignore[attr-defined]
            )
            assert daemon.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert job.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


@pytest.mark.parametrize("is_from_job", [True, False])
async def test_no_byte_goes_through_above_the_owners_limit(
    place: Place, *, is_from_job: bool
) -> None:
    allowed, read = 1_000_003, 0
    place.allowance.bytes_per_day = allowed
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as job:
        job.setblocking(False)
        place.target = job.getsockname()[1]
        await place.attach(8888)
        for _ in range(2):  # more in all than may go through
            stream = await place.open()
            inside, _ = await loop.sock_accept(job)
            with stream, inside:
                near, far = (inside, stream) if is_from_job else (stream, inside)
                sending = asyncio.create_task(loop.sock_sendall(near, bytes(900_000)))
                with suppress(ConnectionResetError):
                    while read < allowed and (data := await loop.sock_recv(far, 1 << 16)):
                        read += len(data)
                        if read == 900_000:
                            break
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await sending
            await until(lambda: place.device.streams == 0)
        with pytest.raises(TunnelError, match="paused"):
            await place.open()
    assert place.allowance.spent == allowed
    assert place.allowance.is_spent
    assert 900_000 <= read <= allowed


async def test_a_stream_on_its_way_when_the_day_is_spent_carries_nothing(place: Place) -> None:
    reached, spent = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as job:
        place.target = job.getsockname()[1]
        await place.attach(8888)
        served = place.device._attempts[ATTEMPT].served

        def connect(port: int) -> socket.socket:
            reached.set()
            spent.wait(20)
            return place._connect(port)

        place.device._attempts[ATTEMPT].served = replace(served, connect=connect)
        opening = asyncio.create_task(place.open())
        await until(reached.is_set)
        place.allowance.bytes_per_day = place.allowance.spent = place.allowance._noted
        spent.set()
        with pytest.raises(TunnelError, match="paused"):
            await opening
        await until(lambda: place.device.streams == 0)


async def test_the_reason_of_an_unreached_job_is_reported(place: Place) -> None:
    await place.attach(8888)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place.target = taken.getsockname()[1]
        assert await place.outcome() is DialOutcome.REFUSED
    served = place.device._attempts[ATTEMPT].served
    for error, outcome in (
        (ProcessLookupError(3, "it is gone"), DialOutcome.NOT_ALLOWED),
        (TimeoutError("slow"), DialOutcome.TIMED_OUT),
        (OSError(24, "too many open files"), DialOutcome.FAILED),
        (TaskError("refused", "not this executor"), DialOutcome.REFUSED),
    ):

        def fail(_: int, error: Exception = error) -> socket.socket:
            raise error

        changed = Served(ATTEMPT, served.ports, None, fail, lambda: None)
        place.device._attempts[ATTEMPT].served = changed
        assert await place.outcome() is outcome


async def test_a_caller_that_waits_for_an_ended_attempt_is_notified(place: Place) -> None:
    await place.attach(8888)
    place.serve(9999, attempt_id=f"{JOB}-2")  # so that the device stays attached
    ended = threading.Event()

    def hang(_: int) -> socket.socket:
        ended.wait(60)
        raise ProcessLookupError(3, "it is gone")

    served = place.device._attempts[ATTEMPT].served
    place.device._attempts[ATTEMPT].served = replace(served, connect=hang)
    opening = asyncio.create_task(place.tunnels.open(TOKEN, JOB, 1, 8888, 60, "buyer"))
    await until(lambda: place.device.streams == 1, "it is on its way")
    place.device.forget(ATTEMPT)
    await asyncio.wait({opening}, timeout=20)
    ended.set()
    assert opening.done()
    with pytest.raises(TunnelError, match="gone"):
        await opening


async def test_a_ticket_that_the_daemon_does_not_know_costs_nothing(place: Place) -> None:
    async with targets.echo() as target:
        place.target = target.port
        await place.attach(8888)
        place.worker.send(Open(7, bytes(16), JOB, 1, 8888))
        await until(lambda: target.ended + target.resets == 1, "the job's connection ends")
        await until(lambda: place.device.streams == 0)
        assert place.tunnels.is_attached(TOKEN)


async def test_only_the_right_daemon_gets_the_token(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker")
    place.door["certificate_sha256"] = "00" * 32
    place.serve(8888)
    await until(lambda: "another certificate" in caplog.text)
    assert not place.tunnels.counts.attached


async def test_a_door_in_the_owners_network_is_not_knocked_at(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker")
    with socket.create_server(("127.0.0.2", 0)) as router:
        router.setblocking(False)
        place.door |= {"host": "127.0.0.2", "port": router.getsockname()[1]}
        place.serve(8888)
        await until(lambda: "is not at the marketplace's host" in caplog.text)
        with pytest.raises(BlockingIOError):
            router.accept()


@pytest.mark.parametrize(
    "door",
    [{}, {"host": 1, "port": 1, "certificate_sha256": ""}, {"host": "a", "port": -1}],
)
async def test_an_api_that_talks_nonsense_is_asked_again(
    place: Place, door: dict[str, Any]
) -> None:
    right, place.door = place.door, door
    place.serve(8888)
    await until(lambda: len(place.asked) > 2)
    place.door = right
    await until(lambda: place.tunnels.is_attached(TOKEN), "it attaches")


@bounded(refused_seconds=0.01)
async def test_an_api_that_is_away_is_asked_again_and_one_that_refuses_later(place: Place) -> None:
    place.failures = [
        LinkError("away"),
        RefusedError("There is none.", "tunnels_not_offered", 400),
        RuntimeError("a mistake of this program"),
    ]
    await place.attach(8888)
    assert len(place.asked) == 4


async def test_a_lost_daemon_is_found_again(place: Place) -> None:
    await place.attach(8888)
    place.worker.cut("lost")
    await until(lambda: place.tunnels.counts.attached == 2, "it attaches again")
    place.worker.refuse("attached_again", "Another one.", 1)
    await until(lambda: place.tunnels.counts.attached == 3)


async def test_it_is_attached_only_while_something_has_ports(place: Place) -> None:
    await asyncio.sleep(0)
    assert place.asked == []
    await place.attach(8888)
    place.serve(9999, attempt_id=f"{JOB}-2")
    place.device.forget(ATTEMPT)
    place.device.forget(ATTEMPT)
    assert await place.outcome() is DialOutcome.NOT_ALLOWED
    assert place.tunnels.is_attached(TOKEN)
    place.device.forget(f"{JOB}-2")
    await until(lambda: not place.tunnels.is_attached(TOKEN))
    with suppress(TunnelError):
        (await place.open()).close()
    await place.attach(8888)


@bounded(tend_seconds=0.01, idle_seconds=3.0)
async def test_an_idle_stream_is_cut(place: Place) -> None:
    async with targets.echo() as target:
        place.target = target.port
        await place.attach(8888)
        with await place.open() as sock:
            await asyncio.get_running_loop().sock_sendall(sock, b"x")
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b"x"
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(sock, 1)
