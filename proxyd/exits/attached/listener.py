"""The exits' port as a whole: takes exits in, keeps them and lets them go.

The parts, each in a module of its own, from the first byte of a connection on:

    arrivals      accept connections within bounds, until the kind of each is known
    controls      shake hands by TLS (`tls`), and know the connections under it
    seals         work connections under TLS
    attachments   exits attach and are gone; with `admission`, `heartbeats` and `notices`
    roster        the exits that are attached
    offers        passed on to the directory, other nodes and the marketplace
    origins       the addresses that the connections of exits leave from
    detached      relays through devices that are not attached
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from market.base.networks import NetworkCounts
from market.devices.origins import DeviceOrigins
from market.exits.consents import Exits
from proxyd.counters import ExitCounters
from proxyd.exits.attached.admission import Admission
from proxyd.exits.attached.arrivals import USUAL as ARRIVALS
from proxyd.exits.attached.arrivals import Arrivals, ArrivalTimes
from proxyd.exits.attached.attachments import Attachments, Watch
from proxyd.exits.attached.control import USUAL as CONTROL
from proxyd.exits.attached.control import ControlBounds, ControlServices
from proxyd.exits.attached.controls import TLS_END_SECONDS, Controls
from proxyd.exits.attached.detached import Detached
from proxyd.exits.attached.heartbeats import Heartbeats
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.notices import NODES_SECONDS, Notices
from proxyd.exits.attached.offers import Offers, Verdicts
from proxyd.exits.attached.origins import Origins
from proxyd.exits.attached.pool import ParkedBudget
from proxyd.exits.attached.roster import Roster
from proxyd.exits.attached.seals import Seals, Workers
from proxyd.exits.attached.work import Work
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Place
from proxyd.limits import ExitLimits
from proxyd.loop.reactor import Reactor

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from proxyd.exits.choosing.own_ports import OwnPorts

EXPIRY_SECONDS: Final = 5.0  # between looks for old records of the directory: a millisecond each


@dataclass(frozen=True, slots=True)
class PortBounds:
    """The bounds on devices at the exits' port.

    Attributes:
        tls_end_seconds: the time for the end of a connection under TLS.
        nodes_seconds: how long a change among the nodes waits for others.
    """

    arrivals: ArrivalTimes = ARRIVALS
    control: ControlBounds = CONTROL
    tls_end_seconds: float = TLS_END_SECONDS
    nodes_seconds: float = NODES_SECONDS


USUAL: Final = PortBounds()


@dataclass(frozen=True, slots=True)
class PortServices:
    """Collaborators from the rest of the daemon.

    `authority` knows which devices may attach, `directory` chooses among exits, `locate` returns
    the place of an address, `counters` count the outcomes of exits, and `now` is the wall clock, in
    UTC seconds. `budget` bounds the connections that wait, those of borrowed exits included.
    `own_ports` are closed to buyers. With `encrypts_all` only connections under TLS are used.
    `sightings` notes the addresses of exits.
    """

    reactor: Reactor
    authority: Exits
    directory: Directory[Any]
    locate: Callable[[str], Place]
    counters: ExitCounters
    now: Callable[[], int]
    neighbours: Neighbours
    budget: ParkedBudget
    sightings: DeviceOrigins
    own_ports: "OwnPorts | None" = None
    encrypts_all: bool = False


@final
class ExitBase:
    """The parts of the exits' port that its checks and its loans need, made before the listener.

    Args:
        limits: bounds at first.
    """

    def __init__(self, services: PortServices, limits: ExitLimits) -> None:
        self.services = services
        self.limits = limits
        self.roster = Roster()
        self.work = Work(services.reactor.loop)
        self.detached = Detached(self.roster, services.authority, self.work)
        self.offers = Offers(self.roster, services.directory, services.neighbours)
        self.verdicts = Verdicts(self.roster, services.neighbours, self.detached)
        self.origins = Origins(
            self.roster,
            services.directory,
            services.neighbours,
            services.locate,
            services.authority,
            services.sightings,
            limits,
        )


@final
class ExitListener:
    """The exits' port: starts, changes and stops its parts.

    Args:
        watch: checks whether exits are honest; None if all count as honest.
        workers: the devices that are attached as workers; None where there are none.
    """

    def __init__(
        self,
        base: ExitBase,
        context: ssl.SSLContext,
        loaner: Loaner,
        watch: Watch | None = None,
        workers: Workers | None = None,
        bounds: PortBounds = USUAL,
    ) -> None:
        services, limits, roster, work = base.services, base.limits, base.roster, base.work
        reactor, counters = services.reactor, services.counters
        self.roster = roster
        self.detached = base.detached
        self.offers = base.offers
        self.origins = base.origins
        self.loaner = loaner
        self._base = base
        self._workers = workers
        self._expiry: TimerHandle | None = None
        self.notices = Notices(
            reactor.loop,
            roster,
            services.neighbours,
            services.own_ports,
            work,
            bounds.nodes_seconds,
        )
        self.attachments = Attachments(
            roster,
            Admission(
                reactor,
                roster,
                services.authority,
                services.locate,
                services.budget,
                counters,
                limits,
                services.own_ports,
                encrypts_all=services.encrypts_all,
            ),
            Heartbeats(
                reactor.loop, roster, services.neighbours, limits.heartbeat_seconds, services.now
            ),
            base.offers,
            base.detached,
            base.origins,
            self.notices,
            services.neighbours,
            loaner,
            watch,
            counters,
        )
        self.seals = Seals(reactor.poller, roster, workers, work)
        arriving = NetworkCounts()
        controls = Controls(
            reactor,
            context,
            ControlServices(
                reactor.loop,
                services.authority,
                self.attachments,
                counters,
                work.spawn,
                loaner,
                self.seals.admit,
                self.seals.tunnel,
                services.neighbours.welcome,
                bounds.control,
            ),
            counters,
            arriving,
            bounds.tls_end_seconds,
        )
        self.arrivals = Arrivals(
            reactor,
            limits,
            counters,
            roster,
            base.origins,
            loaner,
            controls,
            arriving,
            work,
            bounds.arrivals,
        )

    def __len__(self) -> int:
        """Return the number of attached exits."""
        return len(self.roster)

    @property
    def counters(self) -> ExitCounters:
        """The counters of attachments, dials and verdicts."""
        return self._base.services.counters

    @property
    def nodes(self) -> int:
        """Number of other nodes."""
        return len(self._base.services.neighbours)

    @property
    def tasks(self) -> int:
        """Number of running tasks."""
        return len(self._base.work)

    def start(self) -> None:
        """Begin to forget idle exits and old marks, every few seconds."""
        services = self._base.services
        loop = services.reactor.loop
        services.directory.expire(loop.time())
        self.detached.forget_idle()
        self._expiry = loop.call_later(EXPIRY_SECONDS, self.start)

    def recheck(self, device_id: str) -> None:
        """Look up the rights of a device again."""
        if self._workers is not None:
            self._workers.recheck(device_id)
        self.attachments.recheck(device_id)

    def displace(self, device_id: str) -> None:
        """Release an exit that has since attached to another node."""
        self.attachments.displace(device_id)

    def nodes_changed(self) -> None:
        """Notify agents of a change among the other nodes."""
        self.notices.nodes_changed()

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply new limits; no exit is detached because of them."""
        self.arrivals.change_limits(limits)
        self.origins.change_limits(limits)
        self.attachments.change_limits(limits)
        self.loaner.change_heartbeat(limits.heartbeat_seconds)

    def drain(self, seconds: float) -> None:
        """Notify every device that the daemon stops, and attach no more; relays continue.

        Args:
            seconds: until it stops.
        """
        self.attachments.drain(seconds)
        if self._workers is not None:
            self._workers.drain(seconds)

    def close(self) -> None:
        """Detach every exit, and close their waiting connections. Idempotent."""
        self._base.work.stop()
        self.arrivals.close()
        self.loaner.close()
        if self._workers is not None:
            self._workers.close()
        self.seals.close()
        self.attachments.close()
        self.notices.close()
        if self._expiry is not None:
            self._expiry.cancel()
        self._base.work.cancel()

    async def wait_closed(self) -> None:
        """Wait until no task runs any more."""
        await self._base.work.wait()
        if self._workers is not None:
            await self._workers.wait_closed()
