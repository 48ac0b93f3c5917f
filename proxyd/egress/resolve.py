"""Names to addresses: c-ares asks the name servers, and a cache keeps each answer for its time.

The order of the hosts file and the name servers is that of nsswitch.conf. A cached name costs no
coroutine.

- An answer is kept for its TTL, between 1 s and 1 h; "no such name" for 5 s; a failure not at all.
  The cache holds 10,000 names, and drops the name that was used longest ago.
- 2,048 look-ups run at the same time, and those of one name are one look-up. A session may have no
  more of them than are left for the others, so one session alone has half at most. Dials and
  associations have the same rule (`loop/fair_slots.py`).
- An unknown name is reported to the client as an unreachable host (SOCKS5 reply 4), a silent name
  server as a timeout (6), a failing one as a general failure (1).
- Search domains and aliases of this machine do not apply: a name must not depend on the place of
  the proxy.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Protocol

import aiodns
import pycares
from aiodns.error import DNSError

from market.base.networks import Address
from proxyd.egress.aiodns_compat import PrivateResolver
from proxyd.egress.dns_cache import DnsCache
from proxyd.egress.names import address_of_number, canonical, is_number
from proxyd.loop.fair_slots import FairSlots

LOOKUP_SECONDS = 5.0
NAMES_MAX = 10_000  # some megabytes of them
LOOKUPS_MAX = 2048  # c-ares keeps each in memory, and a name server's answers are limited
ADDRESSES_MAX = 32  # of one name: many more than a dial tries
# The first try; the second takes twice that: both end within LOOKUP_SECONDS.
TRY_SECONDS = 1.0
TRIES = 2
FORGET_SECONDS = 5.0  # after a question, the library forgets its answers
COMPLAINT_PAUSE_SECONDS = 60.0  # between log lines: name servers that are away fail every look-up

# No search domains of this machine, nor anybody's HOSTALIASES: a client of the proxy sends the
# whole name, and its meaning must not depend on the place of the proxy.
_FLAGS = pycares.ARES_FLAG_EDNS | pycares.ARES_FLAG_NOSEARCH | pycares.ARES_FLAG_NOALIASES
# Its sorting connects a socket to every address (RFC 6724); the race finds out which one works.
_ADDRINFO_FLAGS = 1 << 7  # ARES_AI_NOSORT

_NOT_FOUND = frozenset(
    (aiodns.error.ARES_ENOTFOUND, aiodns.error.ARES_ENODATA, aiodns.error.ARES_EBADNAME)
)
_UNREACHED = frozenset((aiodns.error.ARES_ECONNREFUSED, aiodns.error.ARES_ETIMEOUT))

_logger = logging.getLogger("resolver")


class NameNotFoundError(Exception):
    """The name has no address."""


class LookupFailedError(Exception):
    """The addresses of the name are unknown now: the name servers fail, or this process is busy."""


class LookupTimedOutError(LookupFailedError):
    """No name server answered in time."""


class Resolver(Protocol):
    """Looks names up."""

    def cached(self, name: str) -> list[Address] | None:
        """Return the addresses of a name if they are in memory, else None.

        Raises:
            NameNotFoundError: the name is known to have no addresses.
        """

    async def resolve(self, name: str, asker: Hashable = None) -> list[Address]:
        """Return the addresses of a name, the best first, at least one.

        Args:
            name: the name.
            asker: the network that it counts for; one asker's look-ups leave room for those of
                others.

        Raises:
            NameNotFoundError: the name has no addresses.
            LookupFailedError: it could not be found out; it may be tried again.
        """


class DnsResolver:
    """The hosts file, then name servers, unless nsswitch.conf has another order.

    Nothing is opened before the first look-up. Look-ups of one name that come together are one. A
    failure is reported and not remembered; that a name does not exist is, for a few seconds.

    Args:
        nameservers: an IP address each, perhaps with a port; none: the servers of resolv.conf,
            which is read again when it changes.
        lookup_seconds: how long a caller waits for one look-up.
        names_max: how many names are remembered.
        lookups_max: limit of simultaneous look-ups, half of them for one asker.
        now: a clock that never goes back, in seconds.
        try_seconds: how long the first try of a question takes.
        forget_seconds: how long the library may keep an answer.
    """

    def __init__(
        self,
        nameservers: Sequence[str] = (),
        *,
        lookup_seconds: float = LOOKUP_SECONDS,
        names_max: int = NAMES_MAX,
        lookups_max: int = LOOKUPS_MAX,
        now: Callable[[], float] = time.monotonic,
        try_seconds: float = TRY_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self._try_seconds = try_seconds
        self._forget_seconds = forget_seconds
        self._nameservers = nameservers
        self._lookup_seconds = lookup_seconds
        self._slots = FairSlots[Hashable](lookups_max)
        self._cache = DnsCache(names_max, now)
        self._lookups: dict[str, _Lookup] = {}
        self._channel: _Channel | None = None
        self._is_closed = False
        self._complained_at = -COMPLAINT_PAUSE_SECONDS
        self._now = now

    @property
    def lookups(self) -> int:
        """Number of names being looked up."""
        return len(self._lookups)

    def cached(self, name: str) -> list[Address] | None:
        """See `Resolver.cached`. An address in an old spelling is also known."""
        key = _key(name)
        addresses = self._cache.get(key)
        if addresses is None and is_number(key):
            address = address_of_number(key)
            addresses = [] if address is None else [address]
        if addresses is not None and not addresses:
            raise NameNotFoundError(name)
        return addresses

    async def resolve(self, name: str, asker: Hashable = None) -> list[Address]:
        """See `Resolver.resolve`."""
        addresses = self.cached(name)
        if addresses is not None:
            return addresses
        lookup = self._lookup(_key(name), asker)
        waiter: asyncio.Future[list[Address]] = asyncio.get_running_loop().create_future()
        lookup.waiters.add(waiter)
        try:
            async with asyncio.timeout(self._lookup_seconds):
                return await waiter
        except TimeoutError:
            raise LookupTimedOutError(name) from None
        finally:
            lookup.waiters.discard(waiter)

    async def close(self) -> None:
        """End every look-up, and give everything back; closing twice is harmless."""
        self._is_closed = True
        channel, self._channel = self._channel, None
        if channel is None:
            return
        queries = [lookup.query for lookup in self._lookups.values()]
        await channel.close()
        if queries:
            await asyncio.wait(queries)

    def _lookup(self, key: str, asker: Hashable) -> "_Lookup":
        """Return the look-up of a name that is under way, or begin one."""
        lookup = self._lookups.get(key)
        if lookup is not None:
            return lookup
        if self._is_closed or not self._slots.take(asker):
            raise LookupFailedError(f"{key}: {len(self._lookups)} names are being looked up")
        try:
            if self._channel is None:
                self._channel = _Channel(self._nameservers, self._try_seconds, self._forget_seconds)
            lookup = _Lookup(self._channel.ask(key), asker)
        except BaseException:
            self._slots.give(asker)
            raise
        self._lookups[key] = lookup
        lookup.query.add_done_callback(partial(self._answered, key))
        return lookup

    def _answered(self, key: str, query: "asyncio.Future[pycares.AddrInfoResult]") -> None:
        lookup = self._lookups.pop(key)
        self._slots.give(lookup.asker)
        error = query.exception()
        if error is None:
            addresses, ttl = _read(query.result())
        elif isinstance(error, DNSError) and error.args[0] in _NOT_FOUND:
            addresses, ttl = [], 0
        else:
            self._complain(key, error)
            lookup.fail(_failure(key, error))
            return
        self._cache.put(key, addresses, ttl)
        if addresses:
            lookup.succeed(addresses)
        else:
            lookup.fail(NameNotFoundError(key))

    def _complain(self, key: str, error: BaseException) -> None:
        """Log that name servers are out of reach, now and then."""
        if self._is_closed or not isinstance(error, DNSError) or error.args[0] not in _UNREACHED:
            return
        now = self._now()
        if now >= self._complained_at + COMPLAINT_PAUSE_SECONDS:
            self._complained_at = now
            _logger.warning("no name server answers, for one when asked for %s: %s", key, error)


class _Lookup:
    """One query for a name, and the futures of the callers that wait for its answer."""

    __slots__ = ("asker", "query", "waiters")

    def __init__(self, query: "asyncio.Future[pycares.AddrInfoResult]", asker: Hashable) -> None:
        self.query = query
        self.asker = asker
        self.waiters: set[asyncio.Future[list[Address]]] = set()

    def succeed(self, addresses: list[Address]) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(list(addresses))

    def fail(self, error: Exception) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))


class _Channel(PrivateResolver):
    """Sockets to the name servers, watched by a thread of c-ares.

    c-ares keeps answers of its own: any number of them, and the absence of an address for an hour,
    regardless of the name server's lifetime. It has no switch for that, so the channel makes it
    forget (`reinit`) a few seconds after a query. Its options that are texts (`lookups`) are left
    alone: pycares passes them as memory that is freed already.
    """

    def __init__(
        self, nameservers: Sequence[str], try_seconds: float, forget_seconds: float
    ) -> None:
        self._forget_seconds = forget_seconds
        self._forgetting: asyncio.TimerHandle | None = None
        super().__init__(
            nameservers,
            asyncio.get_running_loop(),
            flags=_FLAGS,
            timeout=try_seconds,
            tries=TRIES,
        )

    def ask(self, key: str) -> "asyncio.Future[pycares.AddrInfoResult]":
        if self._forgetting is None:
            self._forgetting = self.loop.call_later(self._forget_seconds, self._forget)
        return self.getaddrinfo(key, flags=_ADDRINFO_FLAGS)

    async def close(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        await super().close()

    def _forget(self) -> None:
        self._forgetting = None
        self.forget_answers()


def _key(name: str) -> str:
    key = canonical(name)
    if key is None:
        raise NameNotFoundError(name)
    return key


def _read(result: pycares.AddrInfoResult) -> tuple[list[Address], int]:
    """Return the addresses, IPv6 first (RFC 8305, section 4), and for how many seconds they hold.

    A name that leads over others holds as long as the shortest-lived step. An answer of the hosts
    file holds for 0 seconds.
    """
    addresses = dict.fromkeys(ip_address(node.addr[0].decode()) for node in result.nodes)
    ttls = [node.ttl for node in result.nodes] + [cname.ttl for cname in result.cnames]
    ordered = sorted(addresses, key=lambda address: -address.version)
    return ordered[:ADDRESSES_MAX], min(ttls, default=0)


def _failure(key: str, error: BaseException) -> LookupFailedError:
    if isinstance(error, DNSError) and error.args[0] == aiodns.error.ARES_ETIMEOUT:
        return LookupTimedOutError(key)
    return LookupFailedError(f"{key}: {error}")
