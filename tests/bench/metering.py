"""The cost of metering: the relay itself, over a session that counts and over one that does not.

As a program it is the relay alone, without handshake: it joins each accepted connection to a
target. Both run interpreted.
"""

import asyncio
import socket
import sys
import time
from contextlib import ExitStack

import uvloop

from bench import streams
from bench.bulk import window
from bench.report import Bound, Part, Samples, progress
from bench.servers import Kind, Server, all_started
from market.bandwidth.leases import Grant
from market.base.states import SessionStatus
from proxyd.loop.reactor import Reactor
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import Closer
from proxyd.relay.tcp import Relay

TURNS_PER_ROUND = 10
WARM_UP_SECONDS, SECONDS = 0.05, 0.2
COUNTED, UNCOUNTED, AGAIN = "counted", "uncounted", "uncounted again"
SPEED, COST = "1 stream down, GB/s", "1 stream down, CPU s/GB"
BUDGET_BYTES = 10**15
PIPES = 64


def uncounted() -> type[LiveSession]:
    """Return the kind of session that counts no bytes."""

    class Uncounted(LiveSession):
        __slots__ = ()

        def take(self, size: int, taker: object) -> None:
            """Let it pass."""

        def deliver(self, size: int, sink: object = None) -> None:
            """Let it pass."""

    return Uncounted


def measure(rounds: int) -> Part:
    """Have both take turns often and briefly: the difference is smaller than the noise."""
    part = Part("metering")
    with streams.target() as end:
        # Interpreted: nothing inherits from a compiled class.
        program = ("env", "PROXYD_INTERPRETED=1", sys.executable, "-m", "bench.metering")
        where = ("{host}", "{port}", end.host, str(end.source_port))
        kinds = [
            Kind(name, (*program, name.split()[0], *where), speaks_socks=False)
            for name in (UNCOUNTED, COUNTED, AGAIN)
        ]
        for number in range(rounds):
            progress(f"metering: round {number + 1}")
            with all_started(kinds) as servers:
                _round(part.samples, servers, end)
    ratio = part.samples.ratio
    speed, cost = (ratio(measured, COUNTED, UNCOUNTED) for measured in (SPEED, COST))
    part.bounds = [
        Bound("speed with metering, of that without", speed, 0.98),
        Bound("CPU per GB with metering, of that without", cost, 1.02, at_most=True),
    ]
    noise = " and ".join(f"{ratio(each, AGAIN, UNCOUNTED) or 0:.3f}" for each in (SPEED, COST))
    part.notes.append(
        f"Medians of {rounds * TURNS_PER_ROUND} turns of {SECONDS} s, in {rounds} processes each."
        " The relay that never counts was measured twice, to show the noise: its speed and"
        f" its CPU per GB are {noise} of its own."
    )
    return part


def _round(samples: Samples, servers: list[Server], end: streams.Target) -> None:
    """Keep a stream open through each server, and let one flow at a time."""
    with ExitStack() as stack:
        clients = [stack.enter_context(streams.client(s, end, 1, up=False)) for s in servers]
        for client in clients:
            client.pause()
        turns = list(zip(servers, clients, strict=True))
        for number in range(TURNS_PER_ROUND):
            for server, client in turns if number % 2 else reversed(turns):
                _turn(samples, server, client)


def _turn(samples: Samples, server: Server, client: streams.Client) -> None:
    client.resume()
    time.sleep(WARM_UP_SECONDS)
    speed, cost = window(server, client.counter, SECONDS)
    client.pause()
    samples.add(SPEED, server.name, speed)
    samples.add(COST, server.name, cost)


class Joint:
    """Relays between sockets: the one place here that knows how a relay is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._reactor = Reactor(loop, PIPES)
        self._closer = Closer(loop, self._reactor.poller)

    def join(
        self,
        session: LiveSession,
        client: socket.socket,
        target: socket.socket,
        early: bytes = b"",
    ) -> None:
        """Relay between two sockets; `early` is the data that the client has sent already."""
        relay = Relay(self._reactor, client, target, session, self._closer, lambda: None)
        relay.start(early, None, client_unread=True, target_unread=True)


def grant(session_id: str) -> Grant:
    """Return a session that may relay without end; its name and its lease are called as it is."""
    return Grant(
        session_id=session_id,
        username=session_id,
        password_hash="",
        lease_id=session_id,
        granted_bytes=BUDGET_BYTES,
        status=SessionStatus.ACTIVE,
        expires_at=2**62,
        entries=(),
    )


async def serve(name: str, host: str, port: int, target: tuple[str, int]) -> None:
    """Join every client to the target, for ever."""
    kind = LiveSession if name == "counted" else uncounted()
    session = kind(grant("bench"), lambda _: None)
    loop = asyncio.get_running_loop()
    joint = Joint(loop)
    with socket.create_server((host, port)) as listener:
        listener.setblocking(False)
        while True:
            client, _ = await loop.sock_accept(listener)
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, target)
            joint.join(session, client, sock)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), (sys.argv[4], int(sys.argv[5]))))
