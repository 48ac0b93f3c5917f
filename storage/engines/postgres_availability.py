"""Whether the database accepts writes, and the search for it while it does not.

Theory of operation
-------------------
All connections of a process share one `Availability`. The first unit that loses its connection
reports it (`lost`), and a search begins: one task asks for the server that accepts writes, until
one does. Units wait for it together (`until_up`), for `PATIENCE_SECONDS` from the beginning of the
outage: a planned switchover takes less, so it refuses no request. After that time units are refused
at once, and the search goes on alone: an outage costs the servers two attempts a second, for any
number of clients.

A statement without an answer (`doubted`) may wait for a lock, or its server may be frozen. So the
search asks for a new connection beside the traffic: units go on if the same server gives one.

A server without a free place for one more connection is no outage: the connections that the pools
have go on.

An outage is logged in two lines, at its beginning and at its end; one more says that the database
went back in time, because only a restart ends that outage. Refusals while the database is in reach
(a full disk, a missing standby) are logged once a minute for each cause.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from storage.engines.errors import Cause, UnavailableError
from storage.engines.health import Health
from storage.engines.postgres_servers import Servers, cause_of, close, message_of

# A planned switchover takes one to two seconds, and most clients wait longer than four.
PATIENCE_SECONDS = 4.0
# A server that was promoted is found so soon.
SEARCH_PAUSE_SECONDS = 0.5
CLOSE_SECONDS = 1.0
# A full disk or a missing standby makes every write fail, which is logged once a minute.
QUIET_SECONDS = 60.0

_logger = logging.getLogger("storage")


@dataclass
class _Outage:
    """The effects of one outage, for the line at its end."""

    began: float
    refused: int = 0
    repeated: int = 0
    logged: Cause | None = None


@dataclass
class _Totals:
    """The effects of all outages, for the metrics."""

    failures: dict[Cause, int] = field(default_factory=dict)
    failovers: int = 0
    repeated: int = 0


class Availability:
    """Whether the database accepts writes at the moment.

    Args:
        patience_seconds: how long units wait from the beginning of an outage.
        options: the options of each connection of the search.
    """

    def __init__(
        self, servers: Servers, *, patience_seconds: float = PATIENCE_SECONDS, **options: object
    ) -> None:
        self.patience_seconds = patience_seconds
        self._servers = servers
        self._options = options
        self._up = asyncio.Event()
        self._up.set()
        self._cause = UnavailableError("the database was not reached yet", Cause.UNREACHABLE)
        self._outage: _Outage | None = None
        self._search: asyncio.Task[None] | None = None
        self._totals = _Totals()
        # By cause, loop time: until when a refusal with the database in reach is not logged again.
        self._quiet_until: dict[Cause, float] = {}
        self._is_closed = False
        servers.on_moved = self._moved

    def health(self) -> Health:
        """Return the known state of the database."""
        totals = self._totals
        return Health(
            trouble=None if self._up.is_set() else self._cause.cause,
            server=self._servers.current,
            failures=dict(totals.failures),
            failovers=totals.failovers,
            repeated=totals.repeated,
        )

    def lost(self, error: UnavailableError) -> None:
        """Note that a connection was lost, and have units wait for the server that takes writes."""
        if self._up.is_set():
            self._cause = error
            self._up.clear()
            self._begin()
        self._look()

    def doubted(self) -> None:
        """Check whether the server still answers, because a statement got no answer in time."""
        self._look()

    def refused(self, error: UnavailableError) -> None:
        """Count a unit that was refused; log it unless a line of the last minute covers it."""
        failures = self._totals.failures
        failures[error.cause] = failures.get(error.cause, 0) + 1
        if self._outage is not None:
            self._outage.refused += 1
            self._announce(error)
        elif error.cause is Cause.OTHER:
            return  # its caller logs it, because it may be a fault of the unit itself
        else:
            self._log_sometimes(error)
        error.is_logged = True

    def repeated(self) -> None:
        """Count a unit that is run again, because its connection was lost before the commit."""
        self._totals.repeated += 1
        if self._outage is not None:
            self._outage.repeated += 1

    async def until_up(self, deadline: float) -> None:
        """Wait until the database accepts writes, not longer than patience and `deadline` allow.

        Args:
            deadline: when to give up, in loop time.

        Raises:
            UnavailableError: it does not.
        """
        if self._up.is_set() or self._outage is None:
            return
        deadline = min(deadline, self._outage.began + self.patience_seconds)
        if asyncio.get_running_loop().time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._up.wait()
            except TimeoutError:
                pass
        if not self._up.is_set():
            raise UnavailableError(str(self._cause), self._cause.cause)

    async def close(self) -> None:
        """End the search, and begin no other."""
        self._is_closed = True
        search, self._search = self._search, None
        if search is not None:
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)

    def _moved(self) -> None:
        self._totals.failovers += 1
        _logger.warning("database moved: %s accepts writes now", self._servers.current)

    def _begin(self) -> None:
        self._outage = self._outage or _Outage(asyncio.get_running_loop().time())

    def _look(self) -> None:
        if self._search is None and not self._is_closed:
            self._search = asyncio.create_task(self._find(), name="search for the database")

    async def _find(self) -> None:
        """Search until a server accepts writes, and end the outage."""
        try:
            while (error := await self._failure()) is not None:
                self._cause = error
                self._up.clear()
                self._begin()
                self._announce(error)
                await asyncio.sleep(SEARCH_PAUSE_SECONDS)
        finally:
            self._search = None
        self._end()

    def _announce(self, error: UnavailableError) -> None:
        """Log the beginning of an outage, once; a database that went back in time in any case."""
        assert self._outage is not None  # noqa: S101 - the callers begin it
        is_new = self._outage.logged is None or (
            error.cause is Cause.WENT_BACK and self._outage.logged is not Cause.WENT_BACK
        )
        if is_new:
            _logger.error("database unavailable: %s", error)
            self._outage.logged = error.cause

    def _log_sometimes(self, error: UnavailableError) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until.get(error.cause, 0.0):
            self._quiet_until[error.cause] = now + QUIET_SECONDS
            _logger.error("database failure (%s): %s", error.cause, error)

    def _end(self) -> None:
        outage, self._outage = self._outage, None
        self._up.set()
        if outage is None or outage.logged is None:
            return
        # If it is the same server, a frozen server continues with old units.
        self._servers.end_older(outage.began)
        _logger.warning(
            "database available again after %.1f s, at %s: %d requests refused, %d repeated",
            asyncio.get_running_loop().time() - outage.began,
            self._servers.current,
            outage.refused,
            outage.repeated,
        )

    async def _failure(self) -> UnavailableError | None:
        """Connect to the server that accepts writes; return why that is impossible."""
        try:
            connection = await self._servers.connect(**self._options)
        except UnavailableError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the search goes on, and logs the cause
            failure = UnavailableError(message_of(error), cause_of(error))
        else:
            await close(connection, CLOSE_SECONDS)
            return None
        return None if failure.cause is Cause.BUSY else failure
