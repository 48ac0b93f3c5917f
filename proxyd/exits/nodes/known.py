"""Exits that this node knows: exits of other nodes, and exits that are attached here.

The theory of operation is in `mesh.py`.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, final

from proxyd.exits.attached.attached import Attached
from proxyd.exits.choosing.entries import Place
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.peers import MeshBounds
from proxyd.exits.nodes.remote import RemoteExit, RemoteTerms, terms_of
from proxyd.wire.links import AnnouncedExit

_Equal = TypeVar("_Equal")


@final
class RemoteExits:
    """The exits of other nodes, by link and device."""

    __slots__ = ("_bounds", "_by_link", "_places", "_terms")

    def __init__(self, bounds: MeshBounds) -> None:
        self._bounds = bounds
        self._by_link: dict[Link, dict[str, RemoteExit]] = {}
        # Equal ones are one object: there are few, and many exits.
        self._places: dict[Place, Place] = {}
        self._terms: dict[RemoteTerms, RemoteTerms] = {}

    def __len__(self) -> int:
        """Return the number of links."""
        return len(self._by_link)

    def join(self, link: Link) -> None:
        """Keep the exits of a link from now on."""
        self._by_link[link] = {}

    def leave(self, link: Link) -> list[RemoteExit]:
        """Forget the exits of a link that is over; return them."""
        return [*self._by_link.pop(link).values()]

    def number_of(self, link: Link) -> int:
        """Return the number of exits of a link."""
        return len(self._by_link[link])

    def find(self, device_id: str) -> RemoteExit | None:
        """Return the latest attachment of a device to another node; None without one."""
        return max(self._of_device(device_id), key=attached_at, default=None)

    def since(self, device_id: str) -> int:
        """Return the time of a device's last attachment to another node; 0 without one."""
        return max((each.since for each in self._of_device(device_id)), default=0)

    def remove(self, link: Link, device_id: str) -> RemoteExit | None:
        """Forget an exit of a link; return it, or None if it is not known."""
        return self._by_link[link].pop(device_id, None)

    def announce(
        self, link: Link, announced: AnnouncedExit
    ) -> tuple[RemoteExit | None, RemoteExit | None]:
        """Keep an exit that its node has announced.

        Returns:
            the exit, or None for one beyond the bound; and the entry that it replaces: itself if
            only its terms have changed, None if it is new.
        """
        remotes = self._by_link[link]
        place = self._shared(
            self._places,
            Place(
                announced.country, announced.state, announced.city, announced.asn, announced.kind
            ),
        )
        terms = self._shared(self._terms, terms_of(announced))
        older = remotes.get(announced.device_id)
        known = None if older is None else (older.since, older.place, older.network)
        if older is not None and known == (announced.since, place, announced.network):
            older.change(announced, terms)
            return older, older
        if older is None and len(remotes) >= self._bounds.exits_per_node_max:
            return None, None
        remote = remotes[announced.device_id] = RemoteExit(link, announced, place, terms)
        return remote, older

    def _of_device(self, device_id: str) -> Iterator[RemoteExit]:
        """Yield the exits of a device at other nodes: mostly one, for a moment several."""
        for remotes in self._by_link.values():
            remote = remotes.get(device_id)
            if remote is not None:
                yield remote

    def _shared(self, known: dict[_Equal, _Equal], value: _Equal) -> _Equal:
        """Return the kept equal of a value."""
        if len(known) >= self._bounds.shared_max:  # mostly of exits that are gone
            known.clear()
        return known.setdefault(value, value)


@final
class LocalExits:
    """The exits that are attached to this node, by device.

    Args:
        milliseconds: the wall clock, in UTC.
    """

    __slots__ = ("_by_device", "_last_since", "_milliseconds")

    def __init__(self, milliseconds: Callable[[], int]) -> None:
        self._milliseconds = milliseconds
        self._by_device: dict[str, Attached] = {}
        self._last_since = 0

    def since(self, known: int) -> int:
        """Return the time of attachment of an exit that attaches now.

        It is later than any exit here, and later than `known`.
        """
        self._last_since = max(self._milliseconds(), self._last_since + 1, known + 1)
        return self._last_since

    def get(self, device_id: str) -> Attached | None:
        """Return the exit of a device; None when it is not attached here."""
        return self._by_device.get(device_id)

    def has(self, attached: Attached) -> bool:
        """Return whether an exit is still attached here."""
        return self._by_device.get(attached.device_id) is attached

    def devices(self) -> list[str]:
        """Return the devices of all exits."""
        return [*self._by_device]

    def add(self, attached: Attached) -> None:
        """Keep an exit that attaches."""
        self._by_device[attached.device_id] = attached

    def remove(self, attached: Attached) -> None:
        """Remove an exit that is detached."""
        del self._by_device[attached.device_id]


def attached_at(remote: RemoteExit) -> tuple[int, str]:
    """Return a sort key that is greatest for the valid attachment of a device."""
    return remote.since, remote.node_id
