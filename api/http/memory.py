"""The bytes of requests and answers in memory, by network and in all.

Nothing waits here, unlike in `market.base.slots`: a body without room is refused before it comes.
"""

from api.http.limits import ApiLimits
from market.base.errors import Code, MarketError
from market.base.networks import NetworkCounts, crowded


class Memory:
    """Bounds the bytes of bodies that are still coming, and of large answers that have not left.

    Args:
        limits: the bounds; a reload replaces them.
    """

    def __init__(self, limits: ApiLimits) -> None:
        self.limits = limits
        self._counts = NetworkCounts()

    @property
    def total(self) -> int:
        """The number of counted bytes."""
        return self._counts.total

    def take(self, network: str, size: int) -> None:
        """Count bytes of a network.

        Raises:
            MarketError: `too_busy`, as `check`; they are not counted then.
        """
        self.check(network, size)
        self._counts.add(network, size)

    def check(self, network: str, size: int) -> None:
        """Check that a network may have `size` more bytes.

        Raises:
            MarketError: `too_busy`, when there is no room for them.
        """
        limits = self.limits
        is_full = self._counts.total + size > limits.memory
        if is_full or crowded(network, limits.memory_per_network, self._counts, more=size):
            raise MarketError(Code.TOO_BUSY)

    def give(self, network: str, size: int) -> None:
        """Stop counting bytes of a network."""
        self._counts.add(network, -size)
