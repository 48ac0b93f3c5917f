"""Slots whose idle holders make room for newcomers: the API's connections.

No newcomer waits here, in contrast to `market.base.slots`: browsers keep connections open that they
do not use. When all slots are taken, the idle holder that was active least recently is cut, and the
newcomer is served without a wait. `proxyd.loop.fair_slots` cuts no holder: it refuses newcomers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from market.base.networks import enclosing

# Holders at work are touched, and so move behind the idle ones before long: a search that passes
# this number of them has found no idle one, and must not cost more with every connection.
SEARCH_MAX = 256


class Holder(Protocol):
    """The holder of a slot."""

    @property
    def can_leave(self) -> bool:
        """Whether it does nothing with its slot."""

    def cut(self) -> None:
        """Close the connection without delay."""


_Holder = TypeVar("_Holder", bound=Holder)


class EvictableSlots(Generic[_Holder]):
    """Slots in bounded number, in all and by network, in the order of their last activity.

    The bounds come with each call, since a reload may change them.
    """

    def __init__(self) -> None:
        # Each holder with the orders that it is in, those of its networks in `_of`.
        self._all: OrderedDict[_Holder, tuple[OrderedDict[_Holder, None], ...]] = OrderedDict()
        self._network_of: dict[_Holder, str] = {}
        self._of: dict[str, OrderedDict[_Holder, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_Holder]:
        return iter(tuple(self._all))

    def of(self, network: str) -> int:
        """Return how many slots a network has, or one of those around it."""
        return len(self._of.get(network, ()))

    def refusal(self, network: str, most: int, most_of_network: int) -> str:
        """Make room for one more; return the reason if there is no room, else "".

        Args:
            network: the newcomer's; "" is not counted by network.
            most: how many slots there are.
            most_of_network: how many a network may have; larger networks have their share.
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
        # The newcomer's network first: one that connects again and again evicts only itself.
        own = self._of.get(network, OrderedDict())
        if self._make_room(own) or self._make_room(self._all):
            return ""
        return f"{len(self._all)} connections are open"

    def shed(self, most: int) -> int:
        """Cut at most `most` idle holders. Return the number cut."""
        shed = 0
        while shed < most and self._make_room(self._all):
            shed += 1
        return shed

    def take(self, holder: _Holder, network: str) -> None:
        """Give a slot to a holder; with the network "" it is not counted by network."""
        orders = []
        if network:
            self._network_of[holder] = network
            for name, _ in enclosing(network):
                orders.append(self._of.setdefault(name, OrderedDict()))
                orders[-1][holder] = None
        self._all[holder] = tuple(orders)

    def give(self, holder: _Holder) -> None:
        """Free the slot of a holder; a second call is harmless."""
        self._all.pop(holder, None)
        network = self._network_of.pop(holder, "")
        if not network:
            return
        for name, _ in enclosing(network):
            theirs = self._of[name]
            theirs.pop(holder, None)
            if not theirs:
                del self._of[name]

    def touch(self, holder: _Holder) -> None:
        """Note that a holder was active."""
        orders = self._all.get(holder)
        if orders is None:
            return
        self._all.move_to_end(holder)
        for order in orders:
            order.move_to_end(holder)

    def _make_room(self, among: Iterable[_Holder]) -> bool:
        for holder in islice(among, SEARCH_MAX):
            if holder.can_leave:
                self.give(holder)
                holder.cut()
                return True
        return False
