"""What every service of the marketplace works with: a store, identifiers, the time."""

from collections.abc import Callable
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from market.base.bus import Bus
from market.base.ids import Identifiers
from storage.engines.store import Store


class Context(Struct, frozen=True):
    """Handed to every service first; a service keeps of it what it uses.

    Args:
        store: the database in which the marketplace is kept.
        identifiers: makes the identifiers of new rows.
        now: the wall clock, in whole UTC seconds; tests set it.
        bus: passes on what was committed.
    """

    store: Store
    identifiers: Identifiers
    now: Callable[[], int]
    bus: Bus = field(default_factory=Bus)

    def set_aside(self) -> Self:
        """Return the same over the connections that are reserved for leases and counts.

        A client with a session must not wait for what the API asks of the store.
        """
        return replace(self, store=self.store.set_aside())
