"""Bounded concurrency: a limit in total, a limit per caller, and a bounded queue for the rest.

One class serves all work that a coroutine may wait for: forms in memory (`api.serving.forms`),
calls of the language model (`market.assistant.asking`), passwords (`market.accounts.passwords`) and
photos (`market.photos.decoding`). Two others look alike and are not:

- `proxyd.loop.fair_slots` never waits. The proxy has no coroutine per connection, so a holder that
  finds no slot is refused or tries again, and its share shrinks as others come.
- `api.http.evictable_slots` never waits either: a new connection takes the slot of the one that was
  active least recently.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.networks import NetworkCounts, crowded, enclosing


class Busy(Enum):
    """Reasons for a missing slot."""

    QUEUE_FULL = auto()
    TIMED_OUT = auto()


class SlotBounds(Struct, frozen=True, kw_only=True):
    """Limits of `Slots`; for all but `total` and `queue`, 0 is no limit.

    A caller that is a network (see `market.base.networks`) counts for the networks around it, which
    have their share of each bound per caller.

    Attributes:
        total: the number of slots.
        queue: the number of callers that may wait.
        per_caller: the number of slots of one caller.
        reserved: the number of slots that only known callers get.
        size_per_caller: the largest sum of the sizes of one caller's slots; a caller without a slot
            gets one for any size.
        queue_per_caller: the number of waiting claims of one caller.
        queue_has_running: whether claims with a slot also count as waiting.
    """

    total: int
    queue: int
    per_caller: int = 0
    reserved: int = 0
    size_per_caller: int = 0
    queue_per_caller: int = 0
    queue_has_running: bool = False


class _Claim(Struct, frozen=True, eq=False):
    """A caller's claim to a slot, from the moment it queues until the slot is given back."""

    callers: tuple[str, ...]
    size: int
    is_known: bool

    @property
    def turn(self) -> str:
        """The name of its turn in the queue: its first caller, or the site around that."""
        return enclosing(self.callers[0])[-1][0] if self.callers else ""


class _DisplacedError(Exception):
    """Another claim has the place in the queue."""


def _has_slot(turn: "asyncio.Future[None]") -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


def too_busy(reason: Busy) -> Exception:  # noqa: ARG001 - the API has one code for both
    """Return the refusal of the API."""
    return MarketError(Code.TOO_BUSY)


class Slots:
    """Slots in bounded number. Callers that have to wait take turns, each in order of arrival.

    The first name of a claim has the turn: a site, if it is a network. So a caller with many claims
    delays another one by one of them. A claim whose own bound is reached is passed over, and keeps
    its place. When the queue is full, a new claim takes the place of the newest claim of the
    longest turn, if that turn has at least two claims more than its own. So a few sites do not fill
    the queue.

    Args:
        refusal: makes the exception for a caller that gets no slot.
    """

    def __init__(self, bounds: SlotBounds, refusal: Callable[[Busy], Exception] = too_busy) -> None:
        self._bounds = bounds
        self._refusal = refusal
        self._in_use = 0
        self._in_use_unknown = 0
        self._in_use_of = NetworkCounts()
        self._sizes_of = NetworkCounts()
        # By turns: the next one comes first. No claim in it has room: when a slot becomes free, the
        # claims that have room then get their slots immediately. So a new claim with room does not
        # overtake an older claim with room.
        self._queue: dict[str, dict[_Claim, asyncio.Future[None]]] = {}
        self._waiting = 0
        self._queue_of = NetworkCounts()

    @asynccontextmanager
    async def slot(
        self, *callers: str, size: int = 0, is_known: bool = True, deadline: float | None = None
    ) -> AsyncIterator[None]:
        """Hold a slot within the block.

        Args:
            callers: the names that count it: a network, an identifier, both, or none.
            size: its part of `size_per_caller`, in the same unit.
            is_known: whether the reserved slots are open to this caller.
            deadline: the end of the wait, by the loop's clock; None for no limit.

        Raises:
            Exception: the result of `refusal`, when the queue is full or the deadline has passed.
        """
        claim = _Claim(callers, size, is_known)
        await self._acquire(claim, deadline)
        try:
            yield
        finally:
            self._release(claim)

    @property
    def is_full(self) -> bool:
        """Whether all slots are held, and at least one claim waits."""
        return self._in_use >= self._bounds.total and bool(self._queue)

    async def _acquire(self, claim: _Claim, deadline: float | None) -> None:
        if self._is_refused(claim):
            raise self._refusal(Busy.QUEUE_FULL)
        if self._has_room(claim):
            self._count(claim, 1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._join_queue(claim, turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if _has_slot(turn):  # it was given in the turn of the loop in which the wait ended
                self._release(claim)
            elif claim in self._queue.get(claim.turn, ()):
                self._leave_queue(claim)
            if isinstance(error, TimeoutError):
                raise self._refusal(Busy.TIMED_OUT) from error
            if isinstance(error, _DisplacedError):
                raise self._refusal(Busy.QUEUE_FULL) from error
            raise

    def _release(self, claim: _Claim) -> None:
        self._count(claim, -1)
        # Counts of zero, or less, would admit more than the bounds allow.
        assert self._in_use >= 0  # noqa: S101
        while self._in_use < self._bounds.total and (found := self._next()):
            queued, turn = found
            self._leave_queue(queued)
            if others := self._queue.pop(queued.turn, None):
                self._queue[queued.turn] = others  # behind all other turns
            self._count(queued, 1)
            turn.set_result(None)

    def _next(self) -> tuple[_Claim, asyncio.Future[None]] | None:
        for claims in self._queue.values():
            for claim, turn in claims.items():
                # A turn that was cancelled belongs to a caller that is about to leave the queue.
                if not turn.cancelled() and self._has_room(claim):
                    return claim, turn
        return None

    def _join_queue(self, claim: _Claim, turn: asyncio.Future[None]) -> None:
        self._queue.setdefault(claim.turn, {})[claim] = turn
        self._waiting += 1
        self._count_queue(claim, 1)

    def _leave_queue(self, claim: _Claim) -> None:
        claims = self._queue[claim.turn]
        del claims[claim]
        if not claims:
            del self._queue[claim.turn]
        self._waiting -= 1
        self._count_queue(claim, -1)

    def _is_refused(self, claim: _Claim) -> bool:
        bounds, counts, length = self._bounds, [self._queue_of], self._waiting
        if bounds.queue_has_running:
            counts.append(self._in_use_of)
            length += self._in_use
        most = bounds.queue_per_caller
        is_crowded = most and any(crowded(caller, most, *counts) for caller in claim.callers)
        if is_crowded or length < bounds.queue:
            return bool(is_crowded)
        return self._has_room(claim) or not self._displace(claim.turn)

    def _displace(self, name: str) -> bool:
        """Refuse the newest claim of the longest turn; False if no other turn is longer."""
        longest = max(self._queue.values(), key=len, default={})
        if len(longest) <= len(self._queue.get(name, ())) + 1:
            return False
        claim, turn = next(reversed(longest.items()))
        self._leave_queue(claim)
        if not turn.cancelled():
            turn.set_exception(_DisplacedError())
        return True

    def _has_room(self, claim: _Claim) -> bool:
        bounds = self._bounds
        if self._in_use >= bounds.total:
            return False
        if not claim.is_known and self._in_use_unknown >= bounds.total - bounds.reserved:
            return False
        return not any(self._is_crowded(caller, claim.size) for caller in claim.callers)

    def _is_crowded(self, caller: str, size: int) -> bool:
        bounds = self._bounds
        if bounds.per_caller and crowded(caller, bounds.per_caller, self._in_use_of):
            return True
        most = bounds.size_per_caller
        if not most or not self._sizes_of[caller]:
            return False
        return crowded(caller, most, self._sizes_of, more=size) != ""

    def _count(self, claim: _Claim, change: int) -> None:
        self._in_use += change
        if not claim.is_known:
            self._in_use_unknown += change
        for caller in claim.callers:
            self._in_use_of.add(caller, change)
            self._sizes_of.add(caller, change * claim.size)

    def _count_queue(self, claim: _Claim, change: int) -> None:
        for caller in claim.callers:
            self._queue_of.add(caller, change)
