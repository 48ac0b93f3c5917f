"""How many bytes of requests and answers are in memory, by network and in all."""

from api.limits import Limits
from market.errors import Code, MarketError
from market.networks import NetworkCounts, crowded


class Memory:
    """Bounds the bytes of bodies that are still coming, and of large answers that have not left.

    Args:
        limits: what there may be; it may be replaced.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = NetworkCounts()

    @property
    def held(self) -> int:
        """How many bytes there are."""
        return self._held.total

    def take(self, network: str, size: int) -> None:
        """Count bytes of a network.

        Raises:
            MarketError: `too_busy`, as `check`; they are not counted then.
        """
        self.check(network, size)
        self._held.add(network, size)

    def check(self, network: str, size: int) -> None:
        """Let whoever has room for so many bytes pass.

        Raises:
            MarketError: `too_busy`, when there is no room for them.
        """
        limits = self.limits
        is_full = self._held.total + size > limits.memory
        if is_full or crowded(network, limits.memory_per_network, self._held, more=size):
            raise MarketError(Code.TOO_BUSY)

    def give(self, network: str, size: int) -> None:
        """Count them no more."""
        self._held.add(network, -size)
