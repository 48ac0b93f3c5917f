"""One exit that is attached: its identity, its state, and its parts.

`pool` has its connections that wait, `location` its place and addresses, `terms` its price and
limits, `load` its connections and bytes, and `pulse` its last sign of life. `TRANSITIONS` has the
arrows between its states.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, final

from market.base.networks import Address
from proxyctl.protocol.frames import (
    CALLS,
    Associate,
    Capacity,
    Dialled,
    DialOutcome,
    Frame,
    ServiceLimits,
)
from proxyd.exits.attached.load import Load
from proxyd.exits.attached.location import Location, describe
from proxyd.exits.attached.pool import Asker, Parked, Pool
from proxyd.exits.attached.pulse import Pulse
from proxyd.exits.attached.quick_frames import dial_of
from proxyd.exits.attached.terms import TLS_PORT, Terms
from proxyd.exits.choosing.entries import Place as Where
from proxyd.exits.choosing.places import Carried, Place, Places
from proxyd.loop.deadlines import Expiring

if TYPE_CHECKING:
    from proxyd.metering.pace import Pace

ATTACHMENT_BITS: Final = 64
# Why an exit that is let go of takes the buyers' connections with it: it is not there any more, or
# must not carry anything. The connections of an exit whose control connection was lost go on until
# they end themselves, or until their device may carry nothing any more.
HARMLESS: Final = frozenset(("lost", "attached_again", "stopping"))
SILENT_BEATS: Final = 3  # one heartbeat may be lost, and the next be late
HELD: Final = "paused in the account"
CROWDED: Final = "too many devices' connections leave from the same network"
STANDBY: Final = "another device on the same line carries connections"
WANDERING: Final = "its connections leave from changing addresses"
UNPROVEN: Final = "it was not looked at yet"

_CONNECTED: Final = DialOutcome.CONNECTED


class Carrier(Protocol):
    """View of an exit for the connections that go through it."""

    __slots__ = ()

    device_id: str
    address: Address

    def begin(self, relay: Carried, place: Place | None = None) -> None:
        """Count a connection through the exit, in the place that its dial has taken."""

    def end(self, relay: Carried) -> None:
        """Stop counting a connection; its bytes still count."""


class Adopted(Carried, Protocol):
    """A buyer's connection whose exit was attached to a daemon that is gone."""

    __slots__ = ()

    place: Where

    def join(self, attached: "Attached") -> None:
        """Move the connection to the exit of the same device that has attached here."""


class AttachedState(IntEnum):
    """State of an attached exit.

    OPEN: it takes connections, as long as it has a place. RESTING: it stays attached and takes
    none: its device or its owner has paused it, or it has no place to sell. GONE: it is not
    attached any more.
    """

    OPEN = 0
    RESTING = 1
    GONE = 2


TRANSITIONS: Final = {
    AttachedState.OPEN: (AttachedState.RESTING, AttachedState.GONE),
    AttachedState.RESTING: (AttachedState.OPEN, AttachedState.GONE),
    AttachedState.GONE: (),
}

# Names of this module: the attribute of an enumeration is six times slower (3.11).
_OPEN: Final = AttachedState.OPEN
_RESTING: Final = AttachedState.RESTING
_GONE: Final = AttachedState.GONE


@final
class Agent:
    """Agent of one exit: its waiting connections and its orders.

    `pool` has its connections that wait, `secure` those under TLS, if it can do that. `dials` are
    the orders that it has not answered. `knows_nodes` says that it was sent where else it may
    attach.
    """

    __slots__ = ("dials", "knows_nodes", "pool", "secure", "send")

    def __init__(self, pool: Pool, send: Callable[[Frame], None]) -> None:
        self.pool = pool
        self.send = send
        self.secure: Pool | None = None
        self.dials: dict[int, Asker] = {}
        self.knows_nodes = False

    def add_secure(self, pool: Pool) -> None:
        """Keep connections under TLS in a second pool."""
        self.secure = pool

    def told_nodes(self) -> None:
        """Record that the agent has received the addresses of other nodes."""
        self.knows_nodes = True

    def tend(self) -> None:
        """Close old connections, and request the number that is needed now."""
        self.pool.tend()
        if self.secure is not None:
            self.secure.tend()

    def has_ordered(self, number: int) -> bool:
        """Return whether the connection of this number may have received an order."""
        pools = (self.pool, self.secure)
        return any(pool is not None and pool.has_used(number) for pool in pools)

    def interrupt(self) -> None:
        """Notify its dials that it takes no more connections; keep the waiting connections."""
        dials, self.dials = self.dials, {}
        self.pool.dismiss()
        if self.secure is not None:
            self.secure.dismiss()
        for asker in dials.values():
            asker.lose()

    def close(self) -> None:
        """Notify its dials that it is gone, and close its waiting connections. Idempotent."""
        self.pool.close()
        if self.secure is not None:
            self.secure.close()
        self.interrupt()


@final
class Attached(Carrier, Expiring):
    """An attached exit: its identity, its state and its parts.

    `since` is when it attached (UTC, in milliseconds), `features` are the optional features of its
    agent and its owner. `address` is where its connections leave, as far as that is known.

    Args:
        attachment: its number, which its work connections name.
        min_price_per_gb: micro-USD; cheaper sessions do not leave through it.
        network: it is counted by this.
        address: as the daemon sees it.
        granted: bounds on its use, by the account.
        beat: called when a heartbeat is due.
        now: the loop's clock.
    """

    __slots__ = (
        "_beat",
        "_state",
        "address",
        "agent",
        "attachment",
        "device_id",
        "features",
        "load",
        "location",
        "pulse",
        "since",
        "terms",
    )

    def __init__(
        self,
        attachment: int,
        device_id: str,
        owner_id: str,
        min_price_per_gb: int,
        place: Where,
        network: str,
        address: Address,
        granted: ServiceLimits,
        pool: Pool,
        send: Callable[[Frame], None],
        beat: Callable[["Attached"], None],
        now: Callable[[], float],
    ) -> None:
        self.attachment = attachment
        self.device_id = device_id
        self.address = address
        self.features: tuple[str, ...] = ()
        self.since = 0
        self.agent = Agent(pool, send)
        self.location = Location(place, network)
        self.location.learn(address)
        self.terms = Terms(pool.loop, owner_id, min_price_per_gb, granted)
        self.load = Load(now)
        self.pulse = Pulse(send, now)
        self._state = _OPEN
        self._beat = beat

    # --- who and where it is -------------------------------------------------------------------

    @property
    def owner_id(self) -> str:
        """Account of its owner."""
        return self.terms.owner_id

    @property
    def place(self) -> Where:
        """Its place."""
        return self.location.place

    @property
    def network(self) -> str:
        """Network in which it counts."""
        return self.location.network

    @property
    def text(self) -> str:
        """Its description for buyers."""
        return describe(self.device_id, self.place)

    @property
    def header(self) -> str:
        """The line of a reply that describes it to a buyer."""
        return self.location.header_of(self.device_id, self.address)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another line than that of its attachment."""
        return self.location.is_elsewhere

    def leave_from(
        self, address: Address, place: Where, network: str, *, is_elsewhere: bool
    ) -> None:
        """Count the exit where its connections leave, while it is not in the directory."""
        self.address = address
        self.location.move(place, network, is_elsewhere=is_elsewhere)

    def stray(self, words: str) -> None:
        """Set the reason why it has no place to sell; "" means that it has one."""
        self.location.stray(words)
        self._settle()

    def permitted(self, host: tuple[Address, ...] | str) -> tuple[Address, ...] | str:
        """Return the addresses of a target without those of the exit itself."""
        return self.location.permitted(host, makes_calls=CALLS in self.features)

    # --- its state -----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether dials may choose it, if it has a free place."""
        return self._state is _OPEN

    @property
    def is_gone(self) -> bool:
        """Whether it is not attached any more."""
        return self._state is _GONE

    @property
    def why_not(self) -> str:
        """Reason why no node may choose it; "" if nodes may."""
        terms = self.terms
        if self.location.astray:
            return self.location.astray
        if terms.is_proven or terms.may_ask(TLS_PORT):
            return terms.paused or (HELD if terms.is_held else "")
        return UNPROVEN

    def join(self, since: int, features: tuple[str, ...], capacity: Capacity | None) -> None:
        """Begin: `features` are those of its agent, and `capacity` has the limits of the device."""
        self.since = since
        self.features = features
        self.terms.take_in(capacity)
        self.load.places.reports_ends = capacity is not None

    def pause(self, words: str) -> None:
        """Pause for a reason of the device; "" ends the pause."""
        self.terms.pause(words)
        self._settle()

    def hold(self, *, is_held: bool) -> None:
        """Set whether its owner has paused it in the account."""
        self.terms.hold(is_held=is_held)
        self._settle()

    def _settle(self) -> None:
        """Open, or rest if there is a reason for a rest."""
        terms = self.terms
        rests = terms.paused or terms.is_held or self.location.astray
        state = _RESTING if rests else _OPEN
        if state is not self._state and self._state is not _GONE:
            self._to(state)

    def _to(self, state: AttachedState) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half an exit helps nobody
        self._state = state

    # --- its limits ----------------------------------------------------------------------------

    @property
    def granted(self) -> ServiceLimits:
        """The limits of the account, which are sent to the device."""
        return self.terms.granted

    @property
    def limits(self) -> ServiceLimits:
        """The tighter limits of the account and the device."""
        return self.terms.limits

    @property
    def min_price_per_gb(self) -> int:
        """The least price of a session, in micro-USD per GB."""
        return self.terms.min_price_per_gb

    @property
    def pace(self) -> "Pace":
        """Its speed, which its connections share."""
        return self.terms.pace

    @property
    def is_proven(self) -> bool:
        """Whether it carries more than port 443."""
        return self.terms.is_proven

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of targets that a buyer may use; empty for any port."""
        return tuple(self.terms.limits.ports) if self.terms.is_proven else (TLS_PORT,)

    def allows(self, port: int) -> bool:
        """Return whether a buyer may use it for a port of targets."""
        return self.terms.allows(port)

    def grant(self, granted: ServiceLimits) -> None:
        """Apply the account's bounds on its use from now on."""
        self.terms.grant(granted)

    def change(
        self, limits: ServiceLimits, features: tuple[str, ...], min_price_per_gb: int
    ) -> None:
        """Apply the offer that another node has announced."""
        self.features = features
        self.terms.grant(limits)
        self.terms.set_price(min_price_per_gb)

    # --- its places ----------------------------------------------------------------------------

    @property
    def places(self) -> Places:
        """Its places, and the buyers that have them."""
        return self.load.places

    @property
    def is_spent(self) -> bool:
        """Whether its bytes of the day are used up."""
        return self.load.is_spent

    @property
    def is_behind(self) -> bool:
        """Whether more dials wait for its connections than its owner lets it open in a second."""
        dials, agent = self.terms.dials, self.agent
        if not dials:
            return False
        secure = 0 if agent.secure is None else agent.secure.waiting
        return agent.pool.waiting + secure > dials

    @property
    def keeps_its_pace(self) -> bool:
        """Whether it is behind although it opens all connections that its owner allows it.

        Each connection that other nodes have through it may be a new one.
        """
        if not self.is_behind:
            return False
        agent, load = self.agent, self.load
        opened = agent.pool.pace.in_last_second(load.now())
        if agent.secure is not None:
            opened += agent.secure.pace.in_last_second(load.now())
        return opened >= max(1, self.terms.dials - load.connections_elsewhere)

    @property
    def has_place(self) -> bool:
        """Whether it takes one more connection now."""
        most = self.terms.limits.connections
        is_usable = not (self.load.is_spent or self._state is _GONE)
        return is_usable and (not most or self.load.taken < most)

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Return whether it takes one more connection of a buyer now."""
        load = self.load
        if load.is_spent or self._state is _GONE:
            return False
        return load.places.has(
            buyer, self._most, self.terms.associations, load.now(), datagrams=datagrams
        )

    def take_place(self, buyer: str, *, datagrams: bool) -> Place:
        """Take a place for a dial of a buyer; a connection that gives way for it is cut."""
        load = self.load
        return load.places.take(
            buyer, self._most, self.terms.associations, load.now(), datagrams=datagrams
        )

    @property
    def _most(self) -> int:
        """Number of connections that it takes from this node; 0 for any number."""
        most = self.terms.limits.connections
        return max(1, most - self.load.connections_elsewhere) if most else 0

    # --- its connections and bytes -------------------------------------------------------------

    @property
    def relays(self) -> dict[Carried, Place | None]:
        """The buyers' connections that go through it."""
        return self.load.relays

    def begin(self, relay: Carried, place: Place | None = None) -> None:
        """See `Carrier.begin`."""
        self.load.begin(relay, place)

    def end(self, relay: Carried) -> None:
        """See `Carrier.end`."""
        self.load.end(relay)

    def carried_before(self, size: int, day: int) -> None:
        """Add the bytes that it carried before its attachment, on the day with this number."""
        self.load.carried_before(size, day)
        self.spend(day)

    def spend(self, day: int) -> None:
        """Check whether the bytes of the day with this number are used up."""
        self.load.spend(day, self.terms.limits.bytes_per_day)

    # --- orders to its agent -------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """Its connections that wait."""
        return self.agent.pool

    @property
    def secure(self) -> Pool | None:
        """Its connections that wait under TLS; None if it offers no TLS."""
        return self.agent.secure

    @property
    def dials(self) -> dict[int, Asker]:
        """The orders that it has not answered."""
        return self.agent.dials

    def say(self, frame: Frame) -> None:
        """Send its agent a frame."""
        self.agent.send(frame)

    def order(self, parked: Parked, host: tuple[Address, ...] | str, port: int, by: Asker) -> None:
        """Order one of its connections to connect to a target; `by` gets the answer."""
        self.agent.dials[parked.number] = by
        self.agent.send(dial_of(parked.number, host, port))

    def order_datagrams(self, parked: Parked, by: Asker) -> None:
        """Order one of its connections to carry datagrams; `by` gets the answer."""
        self.agent.dials[parked.number] = by
        self.agent.send(Associate(parked.number))

    def forgo(self, number: int) -> None:
        """Ignore the answer to an order."""
        self.agent.dials.pop(number, None)

    def answered(self, dialled: Dialled) -> bool:
        """Hand an answer to the dial that waits for it; False if no dial does."""
        asker = self.agent.dials.pop(dialled.number, None)
        if dialled.outcome is not _CONNECTED:
            self.load.places.over(dialled.number)
        if asker is None:
            return False
        asker.answer(dialled)
        return True

    # --- is it there? --------------------------------------------------------------------------

    def ponged(self, payload: bytes) -> bool:
        """Measure the round trip; return False for an answer without a ping."""
        seconds = self.pulse.ponged(payload)
        if seconds is None:
            return False
        self.agent.pool.demand.measure(seconds)
        return True

    def timed_out(self) -> None:
        """Act on a heartbeat that is due: see `Expiring.timed_out`."""
        self._beat(self)

    # --- the end -------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Notify its dials that it takes no more connections; keep the waiting connections."""
        self.agent.interrupt()

    def close(self) -> None:
        """Notify its dials that it is gone, and close its waiting connections. Idempotent."""
        if self._state is not _GONE:
            self._to(_GONE)
        self.agent.close()

    def cut(self) -> None:
        """Cut the buyers' connections that go through it."""
        self.load.cut()
