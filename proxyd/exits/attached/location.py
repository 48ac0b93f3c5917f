"""The place of one exit, and its public addresses."""

from hashlib import sha256
from typing import Final, final

from market.base.networks import Address, counted_network, text_of
from proxyctl.protocol.policy import is_global
from proxyd.exits.choosing.entries import Place

ID_CHARACTERS: Final = 12  # no two exits share them by chance, and they hide the device's name
SEEN_MAX: Final = 16  # as many as an agent keeps

_NOWHERE: Final[frozenset[str]] = frozenset()  # one for all: an empty one has 216 bytes


@final
class Location:
    """Place where the connections of an exit leave.

    Connections of one that `is_elsewhere` leave from another line
    than it is attached from; `astray` is why it has no place to sell for that, empty when it has
    one. `seen` are its public addresses, as far as they are known.

    Args:
        network: it is counted by this.
    """

    __slots__ = ("_header", "_near", "astray", "is_elsewhere", "network", "place", "seen")

    def __init__(self, place: Place, network: str) -> None:
        self.place = place
        self.network = network
        self.is_elsewhere = False
        self.astray = ""
        self.seen: tuple[Address, ...] = ()
        self._header = ""  # until a buyer needs it
        self._near = _NOWHERE  # the networks of `seen`

    def move(self, place: Place, network: str, *, is_elsewhere: bool) -> None:
        """Set the place where the connections leave."""
        self.place, self.network, self.is_elsewhere = place, network, is_elsewhere
        self._header = ""

    def header_of(self, device_id: str, address: Address) -> str:
        """Return the line of a reply that describes the exit to a buyer.

        Args:
            device_id: of the exit.
            address: where its connections leave; `move` follows a change.
        """
        if not self._header:
            self._header = f"X-Exit: {describe(device_id, self.place)}; ip={address}"
        return self._header

    def stray(self, words: str) -> None:
        """Set the reason why it has no place to sell; "" means that it has one."""
        self.astray = words

    def learn(self, address: Address) -> None:
        """Add a public address of the exit: its router may show private pages there."""
        if is_global(address) and address not in self.seen:
            self.seen = (*self.seen[1 - SEEN_MAX :], address)
            self._near = frozenset(counted_network(text_of(each)) for each in self.seen)

    def permitted(
        self, host: tuple[Address, ...] | str, *, makes_calls: bool
    ) -> tuple[Address, ...] | str:
        """Return the addresses of a target without those of the exit itself.

        An older agent, which makes no calls, does not know its IPv4 address while it is attached by
        IPv6, and does not refuse it.
        """
        if isinstance(host, str) or not self.seen:
            return host
        is_blind = not makes_calls and all(each.version == 6 for each in self.seen)
        near = self._near
        return tuple(
            each
            for each in host
            if not (is_blind and each.version == 4) and counted_network(text_of(each)) not in near
        )


def describe(device_id: str, place: Place) -> str:
    """Return the description of an exit for buyers: its place, and an id."""
    parts = (
        ("country", place.country),
        ("state", place.state),
        ("city", place.city),
        ("asn", str(place.asn or "")),
        ("kind", place.kind),
        ("id", sha256(device_id.encode()).hexdigest()[:ID_CHARACTERS]),
    )
    return "; ".join(f"{name}={value}" for name, value in parts if value)
