"""The rate limits of callers: a token bucket each, filled at a steady rate."""

from asyncio import sleep
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

from api.http.errors import Transport, TransportError
from api.http.limits import ApiLimits
from market.base.networks import enclosing

CALLERS_MAX = 100_000
BURST_SECONDS = 2.0
HEALTH_SHARE = 4  # probes are frequent, and all come from one address


class RateLimit:
    """Rate limit: each caller may call `per_second` times a second, and twice that in a burst.

    A call of a network also counts in the buckets of the larger networks around it, which hold
    their share.

    Args:
        per_second: the rate; 0 for no limit.
        now: a steady clock, in seconds.
        callers_max: how many buckets are kept.
    """

    def __init__(
        self, per_second: float, now: Callable[[], float], callers_max: int = CALLERS_MAX
    ) -> None:
        self._per_second = per_second
        self._now = now
        self._callers_max = callers_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, requests: int = 1) -> bool:
        """Take a token for each request from a caller's bucket; False when it has fewer.

        For more than a full bucket has, a full one does, and is empty then.
        """
        if not self._per_second:
            return True
        buckets, now = self._buckets, self._now()
        networks = enclosing(caller)
        allowed = True
        for name, share in networks:
            rate = self._per_second * share
            most = rate * BURST_SECONDS
            tokens, since = buckets.get(name, (most, now))
            tokens += (now - since) * rate
            tokens = min(tokens, most)
            allowed = allowed and tokens >= min(requests, most)
            buckets[name] = (tokens, now)
            buckets.move_to_end(name)
        if allowed:
            for name, _ in networks:
                buckets[name] = (max(buckets[name][0] - requests, 0.0), now)
        while len(buckets) > self._callers_max:
            buckets.popitem(last=False)
        return allowed


class Rates:
    """The rates of the API: of each login, device and network, and of all of a user's together.

    Args:
        now: a steady clock, in seconds.
    """

    def __init__(self, limits: ApiLimits, now: Callable[[], float]) -> None:
        self._insistence_seconds = limits.times.insistence_seconds
        self._callers = RateLimit(limits.requests_per_second, now)
        self._users = RateLimit(_of_user(limits), now)
        self._health = RateLimit(limits.requests_per_second * HEALTH_SHARE, now)
        self._refusals = RateLimit(limits.requests_per_second, now)

    async def count(self, caller: str, user_id: str = "", requests: int = 1) -> None:
        """Count a request.

        Args:
            caller: a login, a device, or a network without either.
            user_id: the user of the login or device; all logins and devices of a user also have a
                rate together.
            requests: the number of requests that it counts as.

        Raises:
            TransportError: `too_many_requests`.
        """
        insistent = self.exceeds(caller, user_id, requests)
        if insistent is not None:
            await self.refuse(insistent)

    def exceeds(self, caller: str, user_id: str = "", requests: int = 1) -> str | None:
        """Count requests as `count` does; return the caller or user over its rate, or None.

        It is for the path that answers most requests: within the rate it costs no coroutine. A
        caller may be "": a connection that was reset before it was accepted has no address any
        more.
        """
        if not self._callers.allows(caller, requests):
            return caller
        return None if not user_id or self._users.allows(user_id, requests) else user_id

    async def count_health(self, network: str) -> None:
        """Count a health probe; it has a rate of its own, beside that of the network.

        Raises:
            TransportError: `too_many_requests`.
        """
        if not self._health.allows(network):
            await self.refuse(network)

    async def refuse(self, caller: str) -> NoReturn:
        """Refuse a request of a caller that exceeds its rate, and one that insists a little later.

        Raises:
            TransportError: `too_many_requests`.
        """
        if not self._refusals.allows(caller):
            await sleep(self._insistence_seconds)
        raise TransportError(Transport.TOO_MANY_REQUESTS)


def _of_user(limits: ApiLimits) -> int:
    """Return the rate of all callers of one user: never less than the rate of one caller."""
    if not limits.requests_per_second or not limits.requests_per_second_of_user:
        return 0
    return max(limits.requests_per_second, limits.requests_per_second_of_user)
