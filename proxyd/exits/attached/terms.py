"""The terms on which one exit carries: its price, its limits, and the reasons why it rests."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from proxyctl.protocol.frames import Capacity, ServiceLimits
from proxyd.metering.pace import Pace

if TYPE_CHECKING:
    import asyncio

NO_PORTS: Final = (0,)  # the account and the device allow no port in common
LIMITS_KEPT: Final = 256  # different ones
TLS_PORT: Final = 443  # an exit cannot change bytes under TLS unseen


@final
class Terms:
    """The limits and the price of the account and the device.

    `granted` are the limits of the account, which the device is sent; `limits` the tighter ones of
    the account and the device. `paused` is why the device takes nothing now, empty when it does;
    `is_held` says that its owner has paused it in the account. An exit that is not `is_proven`
    carries port 443 only.

    Args:
        min_price_per_gb: micro-USD; cheaper sessions do not leave through it.
        granted: the limits of the account at first.
    """

    __slots__ = (
        "_capacity",
        "_loop",
        "_pace",
        "granted",
        "is_held",
        "is_proven",
        "limits",
        "min_price_per_gb",
        "owner_id",
        "paused",
    )

    def __init__(
        self,
        loop: "asyncio.AbstractEventLoop",
        owner_id: str,
        min_price_per_gb: int,
        granted: ServiceLimits,
    ) -> None:
        self.owner_id = owner_id
        self.min_price_per_gb = min_price_per_gb
        self.granted = self.limits = _shared(granted)
        self._loop = loop
        self._pace: Pace | None = None
        self.paused = ""
        self.is_held = False
        self.is_proven = True
        self._capacity: Capacity | None = None

    @property
    def pace(self) -> Pace:
        """Its speed, which its connections share. It is made for the first one: most are idle."""
        if self._pace is None:
            self._pace = Pace(self._loop, self.granted.bytes_per_second)
        return self._pace

    @property
    def associations(self) -> int:
        """Most associations that the device carries."""
        return 0 if self._capacity is None else self._capacity.associations

    @property
    def dials(self) -> int:
        """New connections that the device opens in a second; 0 if it has not said how many."""
        return 0 if self._capacity is None else self._capacity.dials

    def grant(self, granted: ServiceLimits) -> None:
        """Apply the account's bounds on its use from now on."""
        self.granted = _shared(granted)
        self.limits = _shared(narrowed(granted, self._capacity))
        if self._pace is not None:
            self._pace.change(granted.bytes_per_second)

    def take_in(self, capacity: Capacity | None) -> None:
        """Apply the limits of the device; None if it has sent none."""
        self._capacity = capacity
        self.limits = _shared(narrowed(self.granted, capacity))

    def pause(self, words: str) -> None:
        """Pause for a reason of the device; "" ends the pause."""
        self.paused = words

    def hold(self, *, is_held: bool) -> None:
        """Set whether its owner has paused it in the account."""
        self.is_held = is_held

    def prove(self, *, is_proven: bool) -> None:
        """Carry all that the owner allows, or only port 443."""
        self.is_proven = is_proven

    def set_price(self, min_price_per_gb: int) -> None:
        """Set the least price of the sessions that it carries."""
        self.min_price_per_gb = min_price_per_gb

    def allows(self, port: int) -> bool:
        """Return whether a buyer may use a port of targets."""
        return (self.is_proven or port == TLS_PORT) and self.may_ask(port)

    def may_ask(self, port: int) -> bool:
        """Return whether its owner allows a port of targets."""
        return not self.limits.ports or port in self.limits.ports


@lru_cache(LIMITS_KEPT)
def _shared(limits: ServiceLimits) -> ServiceLimits:
    """Return the object for equal limits: most exits have the usual ones."""
    return limits


def narrowed(limits: ServiceLimits, capacity: Capacity | None) -> ServiceLimits:
    """Return the tighter one of each limit: the account's or the device's."""
    if capacity is None:
        return limits
    connections, ports = limits.connections, limits.ports
    if capacity.connections:
        connections = min(connections or capacity.connections, capacity.connections)
    if capacity.ports:
        both = tuple(each for each in capacity.ports if not ports or each in ports)
        ports = both or NO_PORTS
    return limits._replace(connections=connections, ports=ports)
