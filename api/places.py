"""Who holds the places that there are: in all and by network, least recently active first."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from market.networks import enclosing

# Whoever is at work stands behind those that do nothing before long; so many are looked at.
SEARCH_MAX = 256


class Holder(Protocol):
    """Whoever has a place."""

    @property
    def can_leave(self) -> bool:
        """Whether it keeps the place and does nothing with it."""

    def cut(self) -> None:
        """Be gone, at once."""


_Holder = TypeVar("_Holder", bound=Holder)


class Places(Generic[_Holder]):
    """Places in bounded number; who does nothing with one makes room for whoever comes.

    The bounds are given with each question, since they may change.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[_Holder, str] = OrderedDict()
        self._of: dict[str, OrderedDict[_Holder, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_Holder]:
        return iter(tuple(self._all))

    def of(self, network: str) -> int:
        """Return how many a network has, or one of those around it."""
        return len(self._of.get(network, ()))

    def refusal(self, network: str, most: int, most_of_network: int) -> str:
        """Make room for one more; return why there is none, or "".

        Args:
            network: who wants it; "" is not counted by network.
            most: how many places there are.
            most_of_network: how many a network may have; those around it have their share.
        """
        if network:
            for name, share in enclosing(network):
                theirs = self._of.get(name)
                if theirs is None or len(theirs) < most_of_network * share:
                    continue
                if not self._make_room(theirs):
                    return f"{name} has {len(theirs)} connections"
        if len(self._all) < most:
            return ""
        # One's own first: whoever comes again and again pushes nobody else out.
        own = self._of.get(network, OrderedDict())
        if self._make_room(own) or self._make_room(self._all):
            return ""
        return f"{len(self._all)} connections are open"

    def shed(self, most: int) -> int:
        """Let go of at most so many who do nothing; return how many there were."""
        shed = 0
        while shed < most and self._make_room(self._all):
            shed += 1
        return shed

    def take(self, holder: _Holder, network: str) -> None:
        """Give a place to somebody; with "" it is not counted by network."""
        self._all[holder] = network
        if network:
            for name, _ in enclosing(network):
                self._of.setdefault(name, OrderedDict())[holder] = None

    def give(self, holder: _Holder) -> None:
        """Take a place back; twice is harmless."""
        network = self._all.pop(holder, "")
        if not network:
            return
        for name, _ in enclosing(network):
            theirs = self._of[name]
            theirs.pop(holder, None)
            if not theirs:
                del self._of[name]

    def touch(self, holder: _Holder) -> None:
        """Note that somebody does something with its place."""
        network = self._all.get(holder)
        if network is None:
            return
        self._all.move_to_end(holder)
        if network:
            for name, _ in enclosing(network):
                self._of[name].move_to_end(holder)

    def _make_room(self, among: Iterable[_Holder]) -> bool:
        for holder in islice(among, SEARCH_MAX):
            if holder.can_leave:
                self.give(holder)
                holder.cut()
                return True
        return False
