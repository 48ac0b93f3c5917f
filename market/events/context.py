"""Dependencies of every service of the marketplace: a store, identifiers, the time."""

from collections.abc import Callable
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from market.base.bus import Bus
from market.base.ids import Identifiers
from storage.engines.store import Store


class Context(Struct, frozen=True):
    """First argument of every service; a service keeps the parts that it uses.

    Args:
        store: the database of the marketplace.
        identifiers: makes the identifiers of new rows.
        now: the wall clock, in whole UTC seconds; tests set it.
        bus: publishes committed changes.
    """

    store: Store
    identifiers: Identifiers
    now: Callable[[], int]
    bus: Bus = field(default_factory=Bus)

    def set_aside(self) -> Self:
        """Return a context with the connections that are reserved for leases and counts.

        A client with a session must not wait for queries of the API.
        """
        return replace(self, store=self.store.set_aside())
