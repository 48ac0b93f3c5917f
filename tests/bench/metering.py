"""What metering costs: the relay itself, over a session that counts and over one that does not.

As a program it is the relay alone, without handshake: it joins whoever connects to a target.
"""

import asyncio
import socket
import sys

import uvloop

from bench import streams
from bench.bulk import transfer
from bench.report import Bound, Part, progress
from bench.servers import Kind, all_started
from market.leases import Grant
from market.states import SessionStatus
from proxyd.meter import LiveSession
from proxyd.poller import Poller
from proxyd.relay.closing import Closer
from proxyd.relay.halfpipe import Way
from proxyd.relay.pipes import PipePool
from proxyd.relay.tcp import Relay

ROUNDS_PER_ROUND = 4
SECONDS = 0.8
SPEED, COST = "1 stream down, GB/s", "1 stream down, CPU s/GB"
BUDGET_BYTES = 10**15
PIPES = 64


class Uncounted(LiveSession):
    """A session that keeps no count of what is spent."""

    __slots__ = ()

    def take(self, size: int, taker: object) -> None:
        """Let it pass."""

    def deliver(self, size: int) -> None:
        """Let it pass."""


def measure(rounds: int) -> Part:
    """Measure both in turn, and each first as often as second."""
    part = Part("metering")
    with streams.target() as end:
        program = (sys.executable, "-m", "bench.metering")
        where = ("{host}", "{port}", end.host, str(end.source_port))
        kinds = [
            Kind(name, (*program, name, *where), speaks_socks=False)
            for name in ("counted", "uncounted")
        ]
        with all_started(kinds) as servers:
            for number in range(rounds * ROUNDS_PER_ROUND):
                progress(f"metering: round {number + 1}")
                for server in servers if number % 2 else reversed(servers):
                    speed, cost = transfer(server, end, 1, up=False, seconds=SECONDS)
                    part.samples.add(SPEED, server.name, speed)
                    part.samples.add(COST, server.name, cost)
    part.notes.append(f"Medians of {rounds * ROUNDS_PER_ROUND} rounds.")
    ratio = part.samples.ratio
    part.bounds = [
        Bound("speed with metering of that without", ratio(SPEED, "counted", "uncounted"), 0.98),
        Bound(
            "CPU per GB with metering of that without",
            ratio(COST, "counted", "uncounted"),
            1.02,
            at_most=True,
        ),
    ]
    return part


class Joint:
    """Relays between sockets: the one place here that knows how a relay is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        poller = Poller(loop)
        self._closer = Closer(loop, poller)
        self._way = Way(loop, poller, PipePool(PIPES))

    def join(self, session: LiveSession, client: socket.socket, target: socket.socket) -> None:
        """Relay between two sockets."""
        relay = Relay(self._way, client, target, session, self._closer, lambda: None)
        relay.start(b"", None, client_unread=True, target_unread=True)


async def serve(name: str, host: str, port: int, target: tuple[str, int]) -> None:
    """Join every client to the target, for ever."""
    grant = Grant(
        session_id="session",
        username="bench",
        password_hash="",
        lease_id="lease",
        granted_bytes=BUDGET_BYTES,
        status=SessionStatus.ACTIVE,
        expires_at=2**62,
        names=(),
    )
    session = {"counted": LiveSession, "uncounted": Uncounted}[name](grant, lambda _: None)
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
