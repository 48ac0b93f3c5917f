"""The admission of exits: the bounds on their number, and the making of each.

`control` checks the consent of the owner before, by `market.exits.consents`.
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, final

from market.base.networks import Address, counted_network, crowded
from market.exits.consents import ExitGrant, Exits
from proxyctl.protocol.frames import CALLS, DENY, SECURE, UDP, Hello, ServiceLimits, Welcome
from proxyd.counters import ExitCounters
from proxyd.exits.attached.attached import HELD, Attached
from proxyd.exits.attached.control import AGAIN_SECONDS, Control
from proxyd.exits.attached.notices import NODES_FEATURE
from proxyd.exits.attached.pool import ParkedBudget, Pool
from proxyd.exits.attached.roster import Roster
from proxyd.exits.choosing.entries import Place
from proxyd.limits import ExitLimits
from proxyd.loop.reactor import Reactor

if TYPE_CHECKING:
    from proxyd.exits.choosing.own_ports import OwnPorts

# Features of agents that this service uses; others are neither kept nor announced.
FEATURES: Final = frozenset((CALLS, DENY, "dns", "lend", NODES_FEATURE, SECURE, UDP))
# Features without use for an agent that attaches by IPv6 and makes no calls: it does not know the
# IPv4 address of its router, and the daemon does not judge each target of these.
UNJUDGED: Final = frozenset(("lend", UDP))


@final
class Admission:
    """Decides whether one more exit may attach, and makes it.

    Args:
        authority: returns the least price of sessions that leave in a country.
        own_ports: addresses and ports that are closed to buyers; None where all are open.
        encrypts_all: whether only connections under TLS are used.
    """

    def __init__(
        self,
        reactor: Reactor,
        roster: Roster,
        authority: Exits,
        locate: Callable[[str], Place],
        budget: ParkedBudget,
        counters: ExitCounters,
        limits: ExitLimits,
        own_ports: "OwnPorts | None",
        *,
        encrypts_all: bool,
    ) -> None:
        self._reactor = reactor
        self._now = reactor.loop.time  # one for all: each look at the method makes an object
        self._roster = roster
        self._authority = authority
        self._locate = locate
        self._budget = budget
        self._counters = counters
        self._limits = limits
        self._own_ports = own_ports
        self._encrypts_all = encrypts_all

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits from now on."""
        self._limits = limits
        self._budget.change(limits.parked)

    def why_not(self, address: str) -> tuple[str, str, int] | None:
        """Return why no exit may attach from an address now, as `Control.refuse` takes it."""
        limits, roster = self._limits, self._roster
        if len(roster) >= limits.exits_total:
            return "too_many_exits", "The service has enough devices now.", AGAIN_SECONDS
        if crowded(counted_network(address), limits.exits_per_network, roster.per_network):
            words = "Too many devices are attached from this network."
            return "too_many_on_network", words, AGAIN_SECONDS
        return None

    def make(
        self, control: Control, grant: ExitGrant, beat: Callable[[Attached], None]
    ) -> Attached:
        """Return an exit for a device; it is not attached yet.

        Args:
            control: its control connection.
            grant: the answer of the marketplace.
            beat: called when a heartbeat is due.
        """
        reactor, place, send = self._reactor, self._locate(control.address), control.send
        return Attached(
            self._roster.fresh_number(),
            grant.device_id,
            grant.user_id,
            self.least_price(grant, place),
            place,
            counted_network(control.address),
            ip_address(control.address.partition("%")[0]),
            limits_of(grant),
            Pool(reactor, send, self._budget, self._counters),
            send,
            beat,
            self._now,
        )

    def least_price(self, grant: ExitGrant, place: Place) -> int:
        """Return the least price of a session that leaves through an exit, in micro-USD per GB.

        The operator's floor holds for those too that were sold without wishes, or for any country.
        """
        return max(grant.min_price_per_gb, self._authority.price_floor(place.country))

    def welcome_of(self, attached: Attached) -> Welcome:
        """Return the first frame for an exit."""
        place = attached.place
        return Welcome(
            attached.attachment,
            str(attached.address),
            place.country,
            place.city,
            place.asn,
            attached.granted,
            max(1, round(self._limits.heartbeat_seconds)),
        )

    def features_of(self, hello: Hello, address: Address) -> tuple[str, ...]:
        """Return the features of an agent at an address that the present settings use."""
        features = features_of(hello, address)
        if self._own_ports is not None and not self._own_ports.fits:
            return tuple(each for each in features if each != DENY)
        return features

    def open_pools(self, attached: Attached, control: Control, hello: Hello) -> None:
        """Request an exit's first connections, under TLS if all connections must be."""
        if SECURE in hello.features:
            attached.agent.add_secure(
                Pool(self._reactor, control.send, self._budget, self._counters, is_secure=True)
            )
        if not self._encrypts_all:
            attached.pool.open()
        elif attached.secure is not None:
            attached.secure.open()


def features_of(hello: Hello, address: Address) -> tuple[str, ...]:
    """Return the features of an agent that this service uses; `address` is the agent's."""
    features = FEATURES.intersection(hello.features)
    if address.version == 6 and CALLS not in features:
        features -= UNJUDGED
    return tuple(sorted(features))


def limits_of(grant: ExitGrant) -> ServiceLimits:
    """Return the limits of an exit, as a frame for it."""
    limits = grant.limits
    return ServiceLimits(
        limits.connections,
        limits.bytes_per_second,
        limits.bytes_per_day,
        tuple(limits.ports),
        HELD if grant.paused else "",
    )
