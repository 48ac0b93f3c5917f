"""The loop's cost of writing counts down while many relays are open and few have moved.

The relays and the meter are the daemon's, over real sockets; the store is left out, because no
relay waits for it. As a program it is the other end of idle connections: it accepts them and says
nothing.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

import uvloop

from bench.metering import BUDGET_BYTES, Joint, grant
from bench.report import Bound, Part, progress
from bench.servers import LOOPBACK, ServerError
from market.bandwidth.credentials import new_credentials
from market.bandwidth.leases import Grant, Leases, LeaseState, Tally, Usage
from proxyd.limits import raise_descriptors
from proxyd.metering.meter import Meter, solo_meter
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal

SESSIONS = 10
RELAYS_PER_SESSION = 1000
SESSIONS_AT_REST = 10_000
DESCRIPTORS_ELSEWHERE = 300
FLUSHES_PER_ROUND = 20
OURS = "proxyd"
MEDIAN, SLOWEST = "a flush, ms", "the slowest, ms"
BYTE = b"."
PAUSE_SECONDS = 0.05  # an acknowledgement may be delayed by 40 ms, and bytes wait for it


def measure(rounds: int) -> Part:
    """Open the relays once; in each flush one of each session has moved a byte."""
    part = Part("flush")
    affordable = (raise_descriptors() - DESCRIPTORS_ELSEWHERE) // (2 * SESSIONS)
    relays = min(RELAYS_PER_SESSION, affordable)
    progress(f"flush: {SESSIONS} sessions of {relays} idle relays each")
    times = uvloop.run(_flushes(relays, rounds * FLUSHES_PER_ROUND))
    for number in range(rounds):
        taken = times[number::rounds]
        part.samples.add(MEDIAN, OURS, sorted(taken)[len(taken) // 2])
        part.samples.add(SLOWEST, OURS, max(taken))
    part.bounds = [
        Bound("a flush blocks the loop, ms", part.samples.median(MEDIAN, OURS), 2.0, at_most=True)
    ]
    part.notes.append(
        f"{SESSIONS} sessions of {relays} relays each that have moved a byte once and are idle, and"
        f" of one that moves a byte before each of {len(times)} flushes; {SESSIONS_AT_REST:,} other"
        " sessions are known and at rest."
    )
    return part


async def _flushes(relays: int, count: int) -> list[float]:
    """Return how long each flush took, in milliseconds."""
    joint = Joint(asyncio.get_running_loop())
    leases = cast("Leases", _Accepting())
    meter = solo_meter(leases, lambda: 0, connections_per_session=relays + 1)
    with ExitStack() as stack:
        for _ in range(SESSIONS_AT_REST):
            await _admitted(meter)
        sessions, clients = [], []
        for _ in range(SESSIONS):
            session = await _admitted(meter)
            port = stack.enter_context(_silent())
            for _ in range(relays):
                joint.join(session, _connected(port), _connected(port), early=BYTE)
            sessions.append(session)
            clients.append(_moving(joint, session))
        await meter.flush()
        return [await _flush(meter, sessions, clients) for _ in range(count)]


async def _flush(
    meter: Meter, sessions: Sequence[LiveSession], clients: Sequence[socket.socket]
) -> float:
    """Have each session move a byte, and return how long writing that down took."""
    await asyncio.sleep(PAUSE_SECONDS)
    for client in clients:
        client.send(BYTE)
    while any(session.used == session.reported for session in sessions):
        await asyncio.sleep(0)
    began = time.perf_counter()
    await meter.flush()
    taken = 1000 * (time.perf_counter() - began)
    if any(session.used != session.reported for session in sessions):
        raise ServerError("a flush has left counts out")
    return taken


async def _admitted(meter: Meter) -> LiveSession:
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    username = new_credentials().username.encode()
    decision = meter.admit(username, b"", LOOPBACK, answer.set_result)
    session = decision if decision is not None else await answer
    if isinstance(session, Refusal):
        raise ServerError(f"no session: {session.name}")
    return session


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection((LOOPBACK, port))
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _moving(joint: Joint, session: LiveSession) -> socket.socket:
    """Relay between two more sockets, and return the client's end."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        client = _connected(port)
        near, _ = listener.accept()
        near.setblocking(False)
        joint.join(session, near, _connected(port))
        listener.accept()[0].detach()  # the target: it stays open, and reads nothing
    return client


@contextmanager
def _silent() -> Iterator[int]:
    """Run this module as a program, and give the port that it accepts connections at."""
    program = (sys.executable, "-m", "bench.flush")
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


class _Accepting:
    """Leases that accept every count without a delay."""

    node_id = None

    async def find(self, username: str, password: bytes) -> str | None:
        return username

    async def open(self, session_id: str) -> Grant:
        return grant(session_id)

    async def forgo_unsure(self) -> None:
        pass

    async def report(self, usages: Sequence[Usage], _tallies: Sequence[Tally]) -> list[LeaseState]:
        return [LeaseState(BUDGET_BYTES, is_used_up=False) for _ in usages]


def _accept() -> None:
    """Accept connections and keep them, for ever."""
    raise_descriptors()
    kept = []
    with socket.create_server((LOOPBACK, 0), backlog=4096) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            kept.append(listener.accept()[0])


if __name__ == "__main__":
    _accept()
