"""Slots that holders compete for: no holder may have more of them than are left for the others.

Taking a slot is a plain call that returns True or False. No caller waits here, unlike in
`market.base.slots`: the proxy has no coroutine per connection that could, so a refused holder tries
again or is turned away.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class FairSlots(Generic[Holder]):
    """Slots that holders compete for: none may have more of them than are left for the others.

    So one that takes all it can get has half, two have a third each, and there is one left for the
    next. `taken` is how many all have.

    Args:
        most: how many there are; it may be lowered while more are taken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._theirs: dict[Holder, int] = {}

    def take(self, holder: Holder) -> bool:
        """Take a slot; return False when none is left for this holder."""
        theirs = self._theirs.get(holder, 0)
        if theirs >= self.most - self.taken:
            return False
        self._theirs[holder] = theirs + 1
        self.taken += 1
        return True

    def full(self) -> list[Holder]:
        """Return the holders that have slots and may take no further ones."""
        left = self.most - self.taken
        return [holder for holder, theirs in self._theirs.items() if theirs >= left]

    def give(self, holder: Holder) -> None:
        """Free a slot."""
        self.taken -= 1
        left = self._theirs[holder] - 1
        if left:
            self._theirs[holder] = left
        else:
            del self._theirs[holder]
