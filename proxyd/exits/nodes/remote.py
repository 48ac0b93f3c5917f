"""Exit that is attached to another node, in the view of this node."""

from typing import Final, NamedTuple, final

from proxyctl.protocol.frames import SECURE, ServiceLimits
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.location import describe
from proxyd.exits.attached.terms import TLS_PORT
from proxyd.exits.choosing.entries import Place
from proxyd.exits.nodes.link import Link
from proxyd.wire.links import AnnouncedExit

MICROS: Final = 1_000_000
ELSEWHERE: Final = "elsewhere"  # among the features, where older nodes pass over it


class RemoteTerms(NamedTuple):
    """Terms of an exit of another node, which its owner and its day may change.

    `paused` is why it carries nothing, empty when it does; `is_spent` says that its bytes of the
    day are used up; `limits` are the bounds on its use.
    """

    paused: str
    is_spent: bool
    limits: ServiceLimits
    features: tuple[str, ...]


def terms_of(announced: AnnouncedExit) -> RemoteTerms:
    """Return the terms of an exit, from its announcement."""
    return RemoteTerms(announced.paused, announced.is_spent, announced.limits, announced.features)


@final
class RemoteExit:
    """An entry of the directory for an exit of another node.

    `since` is when it attached there (UTC, milliseconds). `rtt` is the round trip between it and
    its node, in seconds. `is_gone` is set when its node has let go of it, or the link is lost.
    `borrowed` is the exit that this node dials while it borrows this one.

    Args:
        place: where it is; equal ones are one object.
        terms: its terms; as `place`.
    """

    __slots__ = (
        "address",
        "borrowed",
        "device_id",
        "is_gone",
        "link",
        "min_price_per_gb",
        "network",
        "owner_id",
        "place",
        "rtt_micros",
        "since",
        "terms",
    )

    def __init__(
        self, link: Link, announced: AnnouncedExit, place: Place, terms: RemoteTerms
    ) -> None:
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
        self.change(announced, terms)

    def change(self, announced: AnnouncedExit, terms: RemoteTerms) -> None:
        """Take over the values that may change while an exit is attached."""
        self.terms = terms
        self.min_price_per_gb = announced.min_price_per_gb
        self.rtt_micros = announced.rtt_micros

    @property
    def paused(self) -> str:
        """Reason why it carries nothing; empty when it carries."""
        return self.terms.paused

    @property
    def is_spent(self) -> bool:
        """Whether its bytes of the day are used up."""
        return self.terms.is_spent

    @property
    def limits(self) -> ServiceLimits:
        """The bounds on its use."""
        return self.terms.limits

    @property
    def features(self) -> tuple[str, ...]:
        """Features that it offers beyond connections."""
        return self.terms.features

    @property
    def node_id(self) -> str:
        """The node that it is attached to."""
        return self.link.node_id

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another network than that of its attachment."""
        return ELSEWHERE in self.terms.features

    @property
    def rtt(self) -> float:
        """The round trip between it and its node, in seconds."""
        return self.rtt_micros / MICROS

    @property
    def text(self) -> str:
        """Its description for buyers."""
        return describe(self.device_id, self.place)

    @property
    def is_open(self) -> bool:
        """Whether dials may choose it, if it has a free place."""
        return not self.terms.paused

    @property
    def is_behind(self) -> bool:
        """Whether more dials wait for it than it may begin in a second; as far as is known here."""
        return self.borrowed is not None and self.borrowed.is_behind

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Return whether it takes one more connection of a buyer now, as far as is known here."""
        if self.is_gone or self.terms.is_spent or not self.link.can_borrow:
            return False
        return self.borrowed is None or self.borrowed.has_place_for(buyer, datagrams=datagrams)

    def allows(self, port: int) -> bool:
        """Return whether its owner allows a port of targets."""
        ports = self.terms.limits.ports
        return not ports or port in ports


AnyExit = Attached | RemoteExit


def announcement(attached: Attached) -> AnnouncedExit:
    """Return the announcement of an exit that is attached here, for other nodes."""
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
        # A connection under TLS ends at the node where the exit is attached.
        (
            *(each for each in attached.features if each != SECURE),
            *((ELSEWHERE,) if attached.is_elsewhere else ()),
        ),
        round(attached.pool.demand.rtt * MICROS),
    )
