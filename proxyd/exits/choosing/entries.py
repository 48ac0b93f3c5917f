"""Entries of the directory of exits: their places, and the properties that a choice reads."""

from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, TypeVar

ANY_PORT: Final = 0
NO_FEATURES: Final[frozenset[str]] = frozenset()  # that a choice asks for

_HASH_BYTES: Final = 8


class Place(NamedTuple):
    """Place of an exit, in lower case; empty and 0 are unknown.

    `country` is an ISO 3166 code, `asn` the number of the network, and `kind` one of residential,
    mobile and datacenter.
    """

    country: str = ""
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""


class Region(NamedTuple):
    """Region in which exits are counted; `state` and `city` may be empty."""

    country: str
    state: str
    city: str


class Missing(Enum):
    """Why no exit is chosen: none suits, or none for this port, or a strict label's is away."""

    NO_EXIT = 1
    EXIT_LOST = 2
    NOT_ALLOWED = 3


class Entry(Protocol):
    """The properties of an exit that a choice reads."""

    __slots__ = ()

    @property
    def device_id(self) -> str:
        """Identifier of the device."""

    @property
    def owner_id(self) -> str:
        """Account of the owner: an exit never carries connections that its owner has bought."""

    @property
    def place(self) -> Place:
        """Its place."""

    @property
    def network(self) -> str:
        """Network in which it is counted: see `market.base.networks.counted_network`."""

    @property
    def since(self) -> int:
        """Time at which it attached, in UTC milliseconds."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another network than that of its attachment."""

    @property
    def is_spent(self) -> bool:
        """Whether its bytes of the day are used up."""

    @property
    def min_price_per_gb(self) -> int:
        """Least price of a session that it carries, in micro-USD per GB."""

    @property
    def features(self) -> tuple[str, ...]:
        """Features that it offers beyond connections."""

    @property
    def is_behind(self) -> bool:
        """Whether more dials wait for it than its owner lets it begin in a second."""

    def allows(self, port: int) -> bool:
        """Return whether its owner allows a port of targets."""

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Return whether it takes one more connection of a buyer now."""


Exit = TypeVar("Exit", bound=Entry)


def hash_of(text: str) -> int:
    """Return a hash that is the same in every process; Python's own hash differs."""
    return int.from_bytes(blake2b(text.encode(), digest_size=_HASH_BYTES).digest())
