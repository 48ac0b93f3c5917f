"""The port for devices of a daemon of a run: the product's own parts, over `lines`.

`proxyd.wiring.build_exits` builds them all. Here are only the sockets' stand-ins, and the order of
the daemon's start and stop (`proxyd.wiring.daemon`). `ExitDialling` stands for a
`proxyd.connection` that dials through an exit.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from config.settings import ExitSettings, Settings
from market.exits.consents import Door
from proxyd.egress.resolve import NameNotFoundError
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Place
from proxyd.exits.dialling.dial import Via
from proxyd.exits.nodes.link import LinkTimes
from proxyd.exits.nodes.peers import Cluster, MeshBounds
from proxyd.exits.nodes.remote import AnyExit
from proxyd.exits.watching.bounds import CanaryBounds
from proxyd.loop.clock import Clocks
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Failure
from proxyd.wire.links import link_key
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import ExitBounds
from proxyd.wiring.build_core import Counting
from proxyd.wiring.build_exits import WayOut, port_of, way_out
from proxyd.wiring.exit_port import ExitPort
from proxyd.wiring.listeners import Listeners
from proxyd.wiring.tasks import Tasks
from tests.sim.labels import LabelBooks
from tests.sim.lines import Lines, SimPoller, Unencrypted, fingerprint_of, host_of
from tests.sim.loop import World
from tests.sim.relays import Numbered

if TYPE_CHECKING:
    from tests.sim.exit_plans import WishPlan

PORT = 1090
HEARTBEAT_SECONDS = 2.0
PER_NETWORK = 2
PAGES = ("http://20.0.9.1/a", "http://20.0.9.2/b")
# A turn is bounded by the machine's clock, which is not drawn from the seed.
BOUNDS = ExitBounds(
    mesh=MeshBounds(link=LinkTimes(turn_seconds=1e9)),
    canaries=CanaryBounds(again_seconds=2.0, write_again_seconds=1.0),
)
TARGETS = tuple(IPv4Address(f"20.0.2.{each}") for each in range(1, 7))
_NETWORKS = {"198.51.100": "de", "203.0.113": "fr", "192.0.2": "us"}


def exit_settings(settings: Settings, number: int, *, has_canaries: bool) -> Settings:
    """Return the settings of a daemon that takes devices."""
    host = host_of(number)
    exits = ExitSettings(
        host=host,
        port=PORT,
        public_host=host,
        payout_hold_days=0,
        exits_per_network=PER_NETWORK,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        canaries=PAGES if has_canaries else (),
    )
    return Settings(
        **{name: getattr(settings, name) for name in settings.__struct_fields__} | {"exits": exits}
    )


def country_of(address: str) -> str:
    """Return where an address is."""
    return _NETWORKS.get(address.rpartition(".")[0], "")


class _Geography:
    """Knows where the addresses of a run are."""

    attribution: tuple[str, ...] = ()

    def place(self, address: str) -> Place:
        return Place(country_of(address), kind="residential")

    def opinions(self, _address: str) -> dict[str, str]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class _Names:
    """A resolver that knows no name."""

    async def resolve(self, host: str) -> list[Any]:
        raise NameNotFoundError(host)


class _Reactor:
    """The parts of a `Reactor` that waiting connections use."""

    def __init__(self, loop: Any, poller: SimPoller) -> None:
        self.loop = loop
        self.poller = poller
        self.view = memoryview(b"")  # no socket is read


class _Bound(socket.socket):
    """A socket that listens on a port, and never gets a client."""

    def __init__(self, port: int) -> None:  # no socket of the kernel is opened
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "", self._port


class SimPort:
    """The exits of one run of a daemon.

    Args:
        world: the time.
        lines: lead to the devices.
        name: of the run of the process.
        loop: of the process.
        number: of the process.
        labels: watch the choices for labels.
    """

    def __init__(
        self,
        world: World,
        lines: Lines,
        name: str,
        loop: Any,
        number: int,
        labels: LabelBooks,
    ) -> None:
        self.directory: Directory[AnyExit] = Directory(world.draw("choice", name).random)
        self.way: WayOut
        self.port: ExitPort
        self._watched = labels.watched(self.directory, name)
        self._host = host_of(number)
        self._reactor: Any = _Reactor(loop, SimPoller(lines))
        self._listeners = Listeners(None, _Bound(1080), (), None, frozenset(), exits=_Bound(PORT))
        loop.lines = lines

    def build(
        self, settings: Settings, counting: Counting, market: Any, key: bytes, clocks: Clocks
    ) -> None:
        """Build the parts; see `proxyd.wiring.build`."""
        cluster, leases = None, counting.leases
        if counting.node is not None:
            cluster = Cluster(counting.context.store, lambda: leases.node_id, link_key(key), "", 0)
        names: Any = _Names()
        self.way = way_out(
            settings,
            self._listeners,
            self.directory,
            self._reactor,
            names,
            lambda _: False,  # type: ignore[arg-type]
            cluster,
            clocks,
            BOUNDS,
        )
        self.way.exits.directory = self._watched
        context: Any = Unencrypted
        geography: Any = _Geography()
        door = Door(self._host, PORT, fingerprint_of(self._host))
        assert self._listeners.exits is not None
        self.port = port_of(
            settings,
            self._listeners.exits,
            door,
            context,
            self.way,
            market,
            geography,
            None,
            clocks,
            BOUNDS,
        )

    def start(self, tasks: Tasks) -> None:
        """Take devices; see `Daemon.start` and `ExitPort.start`."""
        self.port.spawn_tasks(tasks)
        self.port.listener.start()
        self.port.canaries.start()

    def welcome(self, sock: Any, address: str) -> str:
        """Take a line of a device, or return why not."""
        return self.port.listener.arrivals.welcome(sock, address)

    def connect(
        self,
        session: LiveSession,
        wish: "WishPlan",
        over: Callable[[LiveSession, Any, Via | None], None],
    ) -> None:
        """Connect to a target through an exit; `over` gets the outcome."""
        target = TARGETS[wish.target]
        ExitDialling(self, session, wish.wants, (target, wish.port), over)

    def watch(self, sock: Any, watcher: Any) -> None:
        """Notify a relay of the end of its work connection."""
        self._reactor.poller.watch(sock.fileno(), watcher)

    async def stop(self) -> None:
        """Let every device go; see `Daemon.close`."""
        await self.port.close()
        self.way.exits.close()


class ExitDialling(Numbered):
    """A client's connection while an exit connects to its target: it may be cut meanwhile.

    Args:
        port: of the daemon.
        session: pays.
        wants: the client's wishes.
        target: an address and a port.
        over: called once, with the exit and its connection, or the failure.
    """

    def __init__(
        self,
        port: SimPort,
        session: LiveSession,
        wants: Wants,
        target: tuple[IPv4Address, int],
        over: Callable[[LiveSession, Any, Via | None], None],
    ) -> None:
        super().__init__()
        self._session = session
        self._over: Callable[[LiveSession, Any, Via | None], None] | None = over
        self._dial: Any = None
        session.connections.add(self)
        dial = port.way.exits.dial(wants, session, *target, self._done)
        if self._over is not None:
            self._dial = dial

    def finish(self) -> None:
        """See `MeteredConnection.finish`."""
        self.abort()

    def abort(self) -> None:
        """See `MeteredConnection.abort`."""
        if self._dial is not None:
            self._dial.cancel()
        self._end(Failure.NOT_ALLOWED, None)

    def _done(self, outcome: Any, _unread: bool, via: Via | None) -> None:
        self._end(outcome, via)

    def _end(self, outcome: Any, via: Via | None) -> None:
        over, self._over = self._over, None
        self._session.connections.discard(self)
        if over is not None:
            over(self._session, outcome, via)
