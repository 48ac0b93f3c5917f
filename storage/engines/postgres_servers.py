"""Finds the PostgreSQL server that accepts writes, among the servers that a URL names.

Theory of operation
-------------------
A cluster of PostgreSQL has one primary, which accepts writes, and standbys. Any server may die,
refuse, or be silent (a lost machine, a partition), and the primary moves. So one place decides
where a connection leads, for the pools and for a node's link alike:

- It begins with the server that accepted writes last. A server that does not answer within
  `NEXT_SECONDS` does not delay the others: an attempt at the next one begins beside it.
- The first server that accepts writes wins, and the other attempts end. A standby and a read-only
  server never win, even if the URL asks for them: a daemon has no use for them.
- Once every other server has answered, a silent one gets `SILENT_SECONDS` in all: a machine that
  died never answers, and a standby may be promoted meanwhile.
- A server whose history ends before the history that this process has seen lost committed changes
  (see `Position`). It never wins. If no other server accepts writes for `LATCH_SECONDS`, the
  database went back in time, and this process refuses all servers until it is started again: by
  then, an operator has compared the books. Before that time a balancer may lead to an old server
  for a moment.
- When another server wins, every connection to the old one is worthless, also in a pool or in the
  middle of a unit: the process closes it without delay.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote
from weakref import WeakSet

import asyncpg

from storage.engines.errors import Cause, UnavailableError
from storage.engines.place import UrlError, parts_of, place

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

PORT = 5432
# An idle server answers in milliseconds, and a busy one within this time. Then the process also
# tries the next one.
NEXT_SECONDS = 1.0
# As long as a server may take that is the only hope; a lost connection attempt is repeated by TCP
# after one and three seconds.
ROUND_SECONDS = 10.0
SILENT_SECONDS = 3.0
# A balancer leaves an old server within seconds, and a manager of PostgreSQL demotes it.
LATCH_SECONDS = 15.0
# A machine that died acknowledges nothing. The kernel ends its connections after this time, before
# a statement ends by its own limit of ten seconds.
TCP_USER_TIMEOUT_SECONDS = 8.0
# A connection at rest is tried after five seconds, and given up after three tries.
KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_INTERVAL_SECONDS = 2
KEEPALIVE_TRIES = 3
# The name of every connection of a daemon, in `pg_stat_activity`.
APPLICATION = "proxyd"

# Answers of another product that speaks PostgreSQL's protocol and keeps no position.
_NO_POSITION = (
    asyncpg.FeatureNotSupportedError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.UndefinedFunctionError,
)
# The flushed position, because a crash may lose unflushed changes without any harm.
_POSITION = """
    SELECT pg_walfile_name(lsn), CAST(lsn - pg_lsn '0/0' AS BIGINT)
    FROM pg_current_wal_flush_lsn() AS lsn
"""
CONNECT_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


_logger = logging.getLogger("storage")


class Server(NamedTuple):
    """One server that a URL names."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address as a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Position(NamedTuple):
    """The end of the history of a database.

    A promotion begins a new timeline, and the log of changes only grows within one. So positions
    never fall, unless committed changes were lost: a frozen primary came back and took over again,
    or an operator restored an older copy.
    """

    timeline: int
    flushed_bytes: int

    def __str__(self) -> str:
        """Return it as PostgreSQL writes it."""
        high, low = divmod(self.flushed_bytes, 1 << 32)
        return f"timeline {self.timeline}, {high:X}/{low:X}"


class _Back(NamedTuple):
    """A database that went back in time: since when (loop time), and whether it stays refused."""

    found: Position
    seen: Position
    since: float
    is_for_good: bool = False


class WentBackError(UnavailableError):
    """A server lost changes that this process has seen there, or on another server."""

    def __init__(self, found: Position, seen: Position) -> None:
        self.found = found
        self.seen = seen
        super().__init__(
            f"the database went back in time: it is at {found}, and was at {seen}; "
            "stop all daemons, run `proxyd ledger audit`, and start them again",
            Cause.WENT_BACK,
        )


class ServerConnection(asyncpg.Connection):
    """A connection that knows its server.

    `server` is the server's name, `made_at` the time of the connection (loop time), `is_committing`
    whether a COMMIT has no answer yet.
    """

    server = ""
    made_at = 0.0
    is_committing = False
    _protocol: Any  # the driver's; its stubs leave the type out

    def terminate(self) -> None:
        """End it immediately; its statement fails as on any lost connection.

        A new statement is two messages. The driver forgets its protocol here, and between these
        messages it would raise an AttributeError; a closed protocol raises an InterfaceError.
        """
        protocol = self._protocol
        super().terminate()
        self._protocol = protocol

    def begin_commit(self) -> None:
        """Note that COMMIT is sent: from here on, only silence may end the connection."""
        self.is_committing = True

    def end_commit(self) -> None:
        """Note that COMMIT was answered."""
        self.is_committing = False


class Servers:
    """The servers of one database.

    Args:
        url: the database; it may name several servers.
        round_seconds: for an attempt at the only server.
        latch_seconds: after which a database that went back in time stays refused.
    """

    def __init__(
        self,
        url: str,
        *,
        round_seconds: float = ROUND_SECONDS,
        latch_seconds: float = LATCH_SECONDS,
    ) -> None:
        self.round_seconds = round_seconds
        self.latch_seconds = latch_seconds
        self._url = url
        self._servers = list(servers_of(url))
        self._seen = Position(0, 0)
        self._back: _Back | None = None
        self._live: WeakSet[ServerConnection] = WeakSet()
        self._is_known = False
        self.current = place(url)  # the server that accepted writes last
        self.on_moved: Callable[[], None] = _ignore

    async def connect(self, *_: object, **options: object) -> asyncpg.Connection:
        """Return a connection to the server that accepts writes.

        Args:
            options: options of `asyncpg.connect`, which is called for each server.

        Raises:
            UnavailableError: no server accepts writes.
            ValueError: the URL cannot be understood.
            asyncpg.PostgresError: the only server refuses, as with a wrong password.
        """
        if self._back is not None and self._back.is_for_good:
            raise WentBackError(self._back.found, self._back.seen)
        failures: dict[Server | None, BaseException] = {}
        connection = await self._round(options, failures)
        if connection is not None:
            self._back = None
            return connection
        self._look_back(failures)
        if len(failures) == 1:
            raise next(iter(failures.values()))
        raise UnavailableError(
            "no server accepts writes: "
            + "; ".join(f"{server} {_why(error)}" for server, error in failures.items()),
            cause_of(*failures.values()),
        )

    def end_others(self) -> None:
        """End every connection that leads to another server than the one that accepts writes."""
        for connection in tuple(self._live):
            if connection.server != self.current:
                connection.terminate()

    def end_older(self, moment: float) -> None:
        """End every connection made before `moment` (loop time), unless it waits for a COMMIT."""
        for connection in tuple(self._live):
            if connection.made_at < moment and not connection.is_committing:
                connection.terminate()

    def _look_back(self, failures: Mapping[Server | None, BaseException]) -> None:
        """Refuse a database that went back in time, permanently after a while.

        Raises:
            WentBackError: a server did, and no other one accepts writes.
        """
        found = [each for each in failures.values() if isinstance(each, WentBackError)]
        if not found:
            self._back = None
            return
        now = asyncio.get_running_loop().time()
        if self._back is None:
            self._back = _Back(found[0].found, found[0].seen, now)
        # A silent server may be the one with the latest changes.
        is_certain = not any(isinstance(each, TimeoutError) for each in failures.values())
        if is_certain and now - self._back.since >= self.latch_seconds:
            self._back = self._back._replace(is_for_good=True)
        raise WentBackError(self._back.found, self._back.seen)

    async def _round(
        self, options: Mapping[str, object], failures: dict[Server | None, BaseException]
    ) -> asyncpg.Connection | None:
        """Ask each server; return the first connection that accepts writes, and note failures."""
        loop = asyncio.get_running_loop()
        waiting = list(self._servers)
        silent_seconds = self.round_seconds if len(waiting) == 1 else SILENT_SECONDS
        attempts: dict[asyncio.Task[asyncpg.Connection], Server | None] = {}
        last = 0.0
        try:
            while waiting or attempts:
                if waiting:
                    server = waiting.pop(0)
                    attempts[asyncio.create_task(self._attempt(server, options))] = server
                    last = loop.time() + silent_seconds
                done, _ = await asyncio.wait(
                    attempts,
                    timeout=NEXT_SECONDS if waiting else max(0.0, last - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    server = attempts.pop(task)
                    if (error := task.exception()) is None:
                        self._begin_with(server)
                        return task.result()
                    failures[server] = error
                if not done and not waiting:
                    self._end_with(list(attempts.values()))
                    failures.update(dict.fromkeys(attempts.values(), TimeoutError()))
                    return None
            return None
        finally:
            await _end(attempts)

    async def _attempt(
        self, server: Server | None, options: Mapping[str, object]
    ) -> asyncpg.Connection:
        """Connect to one server.

        Raises:
            WentBackError: its history ends before the history that was seen.
            UnavailableError: another server was promoted meanwhile.
            asyncpg.TargetServerAttributeNotMatched: it is a standby, or read-only.
        """
        arguments: dict[str, Any] = {
            **options,
            "timeout": self.round_seconds,
            "target_session_attrs": "read-write",
        }
        settings: Any = options.get("server_settings", {})
        arguments["server_settings"] = {"application_name": APPLICATION, **settings}
        url = self._url
        if server is not None:
            arguments |= {"host": [server.host], "port": [server.port]}
            url = _without_hosts(url)
        arguments["connection_class"] = ServerConnection
        connection: ServerConnection = await asyncpg.connect(url, **arguments)
        connection.server = self._name(server)
        connection.made_at = asyncio.get_running_loop().time()
        try:
            bound_silence(connection)
            # Another connection may show a later position before this one's answer is read.
            seen = self._seen
            position = await _position(connection)
            if position is not None and position < seen:
                raise WentBackError(position, seen)
            if position is not None and position.timeline < self._seen.timeline:
                raise UnavailableError("another server was promoted since", Cause.READ_ONLY)
        except BaseException:
            connection.terminate()
            raise
        self._seen = max(self._seen, position or self._seen)
        self._live.add(connection)
        return connection

    def _name(self, server: Server | None) -> str:
        return place(self._url) if server is None else str(server)

    def _begin_with(self, server: Server | None) -> None:
        """Try this server, which accepts writes, first from here on."""
        self._servers = [server, *(each for each in self._servers if each != server)]
        has_moved = self._is_known and self.current != self._name(server)
        self.current, self._is_known = self._name(server), True
        if has_moved:
            self.end_others()
            self.on_moved()

    def _end_with(self, silent: Sequence[Server | None]) -> None:
        """Ask silent servers last from here on, so that none of them delays the others."""
        self._servers = [*(each for each in self._servers if each not in silent), *silent]


async def _end(attempts: dict[asyncio.Task[asyncpg.Connection], Server | None]) -> None:
    """Cancel attempts, and end those that have connected at the last moment."""
    for task in attempts:
        task.cancel()
    ending = asyncio.gather(*attempts, return_exceptions=True)
    for result in await asyncio.shield(ending):
        if isinstance(result, asyncpg.Connection):
            result.terminate()


async def _position(connection: asyncpg.Connection) -> Position | None:
    """Return the position of the server's history; None where it keeps none."""
    try:
        row = await connection.fetchrow(_POSITION)
    except _NO_POSITION:
        return None
    assert row is not None  # noqa: S101 - it has no WHERE
    return Position(int(row[0][:8], 16), row[1])


def _ignore() -> None:
    """Do nothing: no callback is registered."""


def bound_silence(connection: asyncpg.Connection) -> None:
    """Make the kernel end a TCP connection whose server acknowledges nothing any more.

    The driver has no setting for it, and shows its socket in a private attribute alone; under
    uvloop that socket takes no options, so they are set on a duplicate of its descriptor.
    """
    transport = connection._transport  # type: ignore[attr-defined]
    shown = transport.get_extra_info("socket")
    with socket.socket(fileno=os.dup(shown.fileno())) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_USER_TIMEOUT, int(TCP_USER_TIMEOUT_SECONDS * 1000)),
            (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
            (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
            (socket.TCP_KEEPCNT, KEEPALIVE_TRIES),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def close(connection: asyncpg.Connection, seconds: float) -> None:
    """Close a connection in order, or end it when that takes longer than `seconds`."""
    try:
        await connection.close(timeout=seconds)
    except CONNECT_ERRORS as error:
        _logger.debug("a connection did not close in time: %s", error)
        connection.terminate()


def accepts_writes(connection: "asyncpg.Connection | PoolConnectionProxy[asyncpg.Record]") -> bool:
    """Return whether the server of a connection accepts writes, according to its last report.

    PostgreSQL 14 and later report it with the next answer, so this costs no query.
    """
    settings = connection.get_settings()
    return not any(
        getattr(settings, name, "off") == "on"
        for name in ("in_hot_standby", "default_transaction_read_only")
    )


def servers_of(url: str) -> Sequence[Server | None]:
    """Return the servers that a URL names; None leaves the choice to the driver.

    Raises:
        UrlError: the URL cannot be understood.
    """
    parts = parts_of(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    each = parts.hosts.split(",") if parts.hosts else query.get("host", "").split(",")
    if len(each) == 1:
        return [None]
    ports = query.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(each)
    if len(ports) != len(each):
        raise UrlError("names another number of ports than of servers")
    return [_server(spec, port) for spec, port in zip(each, ports, strict=True)]


def _without_hosts(url: str) -> str:
    """Return a URL without its servers, which the driver cannot split in every case."""
    login, _, path, query = parts_of(url)
    at = "@" if login else ""
    return f"postgresql://{login}{at}{path}" + (f"?{query}" if query else "")


def _server(spec: str, port: str) -> Server:
    """Return the server of one part of a list, whose own port counts before the list's."""
    if spec.startswith("["):
        host, end, own = spec[1:].partition("]")
        if not end:
            raise UrlError("has an IPv6 address without its closing bracket")
        own = own.removeprefix(":")
    elif spec.startswith("/"):
        host, own = spec, ""
    else:
        host, _, own = spec.partition(":")
    host = unquote(host)
    if not host.isprintable():
        raise UrlError("has a server whose name is not printable")
    if not host:
        raise UrlError("has a server without a name")
    number = own or port or str(PORT)
    if not number.isdecimal():
        raise UrlError("has a port that is not a number")
    return Server(host, int(number))


def cause_of(*errors: BaseException) -> Cause:
    """Return the most significant kind of failure of several servers."""
    kinds = [_cause(error) for error in errors]
    # The failure of the primary explains more than those of standbys, and these more than a silent
    # server.
    ranks = (Cause.WENT_BACK, Cause.FULL, Cause.BUSY, Cause.READ_ONLY, Cause.SILENT)
    return next((each for each in ranks if each in kinds), kinds[0])


def _cause(error: BaseException) -> Cause:
    if isinstance(error, UnavailableError):
        return error.cause
    for kinds, cause in (
        (
            (asyncpg.TargetServerAttributeNotMatched, asyncpg.ReadOnlySQLTransactionError),
            Cause.READ_ONLY,
        ),
        (asyncpg.DiskFullError, Cause.FULL),
        (asyncpg.TooManyConnectionsError, Cause.BUSY),
        (TimeoutError, Cause.SILENT),
        (
            (
                asyncpg.PostgresConnectionError,
                asyncpg.AdminShutdownError,
                asyncpg.CrashShutdownError,
                asyncpg.CannotConnectNowError,
                asyncpg.InterfaceError,
                OSError,
            ),
            Cause.UNREACHABLE,
        ),
    ):
        if isinstance(error, kinds):
            return cause
    return Cause.OTHER


def message_of(error: BaseException) -> str:
    """Return the error's message without its DETAIL, which may repeat a whole row."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0])
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "the server accepts no writes: it is a standby, or read-only"
    return str(error) or type(error).__name__


def _why(error: BaseException) -> str:
    """Return the predicate of a sentence about one server of several."""
    if isinstance(error, TimeoutError):
        return "does not answer"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "is a standby, or read-only"
    if isinstance(error, OSError) and (error.errno or 0) > 0:  # of name servers it is negative
        return f"fails ({os.strerror(error.errno or 0)})"
    if isinstance(error, ValueError):  # the driver's message may repeat a part of the URL
        return "fails (the URL cannot be read)"
    return f"fails ({message_of(error)})"
