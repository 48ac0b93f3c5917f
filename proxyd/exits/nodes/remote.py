"""An exit that is attached to another node, as this one knows it."""

from typing import Final, final

from proxyctl.protocol.frames import SECURE, Limits
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.location import describe
from proxyd.exits.attached.terms import TLS_PORT
from proxyd.exits.choosing.directory import Place
from proxyd.exits.nodes.link import Link
from proxyd.wire.links import AnnouncedExit

MICROS: Final = 1_000_000
ELSEWHERE: Final = "elsewhere"  # among the features, where older nodes pass over it


# More than 12 fields: all that a choice, a dial and its owner's view need, and nothing twice.
@final
class RemoteExit:
    """An entry of the directory for an exit of another node.

    `since` is when it attached there (UTC, milliseconds). `paused` is why it carries nothing, empty
    when it does; `is_spent` says that its bytes of the day are used up. `rtt` is the round trip
    between it and its node, in seconds. `is_gone` is set when its node has let go of it, or the
    link is lost. `borrowed` is what it is dialled by here, while it is borrowed.

    Args:
        link: with its node.
        announced: what that says of it.
        place: where it is; equal ones are one object.
        limits: what it is used for at most; as `place`.
    """

    __slots__ = (
        "address",
        "borrowed",
        "device_id",
        "features",
        "is_gone",
        "is_spent",
        "limits",
        "link",
        "min_price_per_gb",
        "network",
        "owner_id",
        "paused",
        "place",
        "rtt_micros",
        "since",
    )

    def __init__(self, link: Link, announced: AnnouncedExit, place: Place, limits: Limits) -> None:
        network, address = announced.network, announced.address
        self.link = link
        self.device_id = announced.device_id
        self.owner_id = announced.owner_id
        self.since = announced.since
        self.place = place
        self.network = network
        self.address = network if address == network else address  # once, where it is one
        self.is_gone = False
        self.borrowed: Attached | None = None
        self.change(announced, limits)

    def change(self, announced: AnnouncedExit, limits: Limits) -> None:
        """Take over what may change of an exit while it is attached."""
        self.paused = announced.paused
        self.is_spent = announced.is_spent
        self.min_price_per_gb = announced.min_price_per_gb
        self.limits = limits
        self.features = announced.features
        self.rtt_micros = announced.rtt_micros

    @property
    def node_id(self) -> str:
        """The node that it is attached to."""
        return self.link.node_id

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another network than it has attached from."""
        return ELSEWHERE in self.features

    @property
    def rtt(self) -> float:
        """The round trip between it and its node, in seconds."""
        return self.rtt_micros / MICROS

    @property
    def text(self) -> str:
        """What buyers are told of it."""
        return describe(self.device_id, self.place)

    @property
    def is_open(self) -> bool:
        """Whether it may be chosen, as long as it has a place."""
        return not self.paused

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Say whether it takes one more connection of a buyer now, as far as is known here."""
        if self.is_gone or self.is_spent or not self.link.can_borrow:
            return False
        return self.borrowed is None or self.borrowed.has_place_for(buyer, datagrams=datagrams)

    def allows(self, port: int) -> bool:
        """Say whether it may be asked for a port of targets."""
        return not self.limits.ports or port in self.limits.ports


AnyExit = Attached | RemoteExit


def announcement(attached: Attached) -> AnnouncedExit:
    """Return what other nodes are told of an exit that is attached here."""
    place = attached.place
    return AnnouncedExit(
        attached.device_id,
        attached.owner_id,
        attached.since,
        attached.why_not,
        attached.is_spent,
        attached.min_price_per_gb,
        place.country,
        place.state,
        place.city,
        place.asn,
        place.kind,
        attached.network,
        str(attached.address),
        attached.limits if attached.is_proven else attached.limits._replace(ports=(TLS_PORT,)),
        # What is under TLS ends where the exit is attached.
        (
            *(each for each in attached.features if each != SECURE),
            *((ELSEWHERE,) if attached.is_elsewhere else ()),
        ),
        round(attached.pool.demand.rtt * MICROS),
    )
