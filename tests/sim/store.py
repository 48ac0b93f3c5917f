"""Database of a run, and the connection of each process to it.

`Database` runs units of work by the product's own code for SQLite, in memory, one after the other.
`SimStore` is the store of one process: its requests and answers are delayed or lost. `SimLink` is
its link to the other nodes, as on PostgreSQL: a session of the server, which ends after a silence,
holds the sweepers' lock and receives notices.

A `Store` promises that a unit with a failed answer is never written later. So a request that
arrives after its caller has given up is dropped.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

from storage.engines import sqlite as engine
from storage.engines.errors import Cause, UnavailableError, UnknownOutcomeError
from storage.engines.health import Health
from storage.engines.sqlite_link import _REGISTER, _RENEW, ANSWERS_PER_TIMEOUT
from storage.engines.store import Transaction
from tests.sim.faults import Trip, Weather
from tests.sim.loop import World

EPOCH = 1_800_000_000
# A unit on PostgreSQL that gets no answer ends after ten seconds. Here it does so earlier, so that
# runs are shorter; a recall takes less in any case.
ANSWER_SECONDS = 6.0
SILENCE_CHECK_SECONDS = 0.25
# A server notices within milliseconds that the process at the other end is gone.
GONE_SECONDS = 0.005
# All of the product: the default is a part of them.
STATEMENTS_KEPT = 1_000


class Commit:
    """Committed unit of work.

    Args:
        name: of the unit.
        process: the run of the process that sent it.
        has_written: whether rows may have changed since the last commit, except for the row of a
            node that its link has renewed.
    """

    __slots__ = ("has_written", "name", "process")

    def __init__(self, name: str, process: str, *, has_written: bool) -> None:
        self.name = name
        self.process = process
        self.has_written = has_written


class _Connection(sqlite3.Connection):
    """Connection to a database in memory that several runs use, one after the other.

    A run is one transaction, which is rolled back at the end, so SQLite prepares each statement
    once for all runs. A transaction of the product is nothing in it: nothing interrupts one, and
    each unit runs in a savepoint. No constraint of the schema waits for a commit.
    """

    _now: Callable[[], str] = str

    def prepare(self, content: bytes) -> None:
        """Fill the database."""
        self.deserialize(content)
        engine._configure(self)
        self.execute("PRAGMA secure_delete = OFF")  # no file has its free pages
        self.create_function("strftime", 2, self._strftime)

    def begin_run(self, now: Callable[[], str]) -> None:
        """Undo what the last run has written, and set the clock."""
        self._now = now
        self.end_run()
        self.execute("BEGIN")

    def _strftime(self, *_: str) -> str:
        return self._now()

    def end_run(self) -> None:
        """Undo what the run has written."""
        if self.in_transaction:
            self.execute("ROLLBACK")


@cache
def _connection(content: bytes) -> _Connection:
    connection = sqlite3.connect(
        ":memory:",
        isolation_level=None,
        cached_statements=STATEMENTS_KEPT,
        factory=_Connection,
    )
    connection.prepare(content)
    return connection


class Database:
    """SQLite database in memory, with the sessions of its links.

    Args:
        world: the clock, the lines and the failures of the run.
        content: a database, as bytes.
        weather: the faults, and their times.
        committed: called after each unit that was written.
    """

    def __init__(
        self, world: World, content: bytes, weather: Weather, committed: Callable[[Commit], None]
    ) -> None:
        self.world = world
        self.weather = weather
        self.committed = committed
        self.commits = 0
        # Seconds that all wall clocks have jumped forward at the end.
        self.leapt = 0.0
        self.sessions: list[_ServerSession] = []
        # Called with a run of a process, its node, and each notice that it has got.
        self.heard: Callable[[str, str, str], None] = lambda *_: None
        self.connection = _connection(content)
        self.connection.begin_run(lambda: str(self._now()))
        self._changes = self.connection.total_changes  # at the last commit

    def _now(self) -> int:
        return EPOCH + int(self.world.now + self.leapt + self.weather.of_database_clock())

    def write(
        self, process: str, name: str, start: Any, *, is_twice: bool, is_link: bool = False
    ) -> Any:
        """Run a unit and commit it; return its outcome.

        Args:
            process: the name of the run of a process.
            name: of the unit.
            start: runs the unit.
            is_twice: whether it is run once before, and rolled back.
            is_link: whether it only writes the row of the node of a link.
        """
        if is_twice:  # a conflict: the first run was rolled back
            self._rolled_back(start)
        outcome = engine._write_unit(self.connection, start)
        error = "" if outcome.error is None else f" {type(outcome.error).__name__}"
        self.commits += 1
        self.world.say(f"db      {process} {name}{error}")
        if outcome.error is None:
            for text in outcome.notices:
                for session in self.sessions:
                    session.notify(text)
            before, self._changes = self._changes, self.connection.total_changes
            own = outcome.result if is_link else 0
            has_written = self._changes - own != before
            self.committed(Commit(name, process, has_written=has_written))
        return outcome

    def read(self, start: Any) -> Any:
        """Run a unit that only reads, and return its outcome.

        Raises:
            AssertionError: it has written something.
        """
        connection = self.connection
        before = connection.total_changes
        try:
            return engine._finish(start(engine._Transaction(connection)))
        finally:
            if connection.total_changes != before:
                raise AssertionError("a unit that only reads has written")

    def _rolled_back(self, start: Any) -> None:
        self.connection.execute("SAVEPOINT twice")
        try:
            engine._write_unit(self.connection, start)
        finally:
            self.connection.execute("ROLLBACK TO twice")
            self.connection.execute("RELEASE twice")

    def close(self) -> None:
        """Undo what the run has written."""
        self.connection.end_run()

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return rows, for checks."""
        return self.connection.execute(sql, values).fetchall()

    def take_lock(self, session: "_ServerSession") -> bool:
        """Take the sweepers' lock; False when another session has it."""
        if any(each.has_lock for each in self.sessions if each is not session):
            return False
        session.has_lock = True
        return True

    def end_silent(self) -> None:
        """End the sessions that were silent for too long; repeat this periodically."""
        self.world.after(SILENCE_CHECK_SECONDS, self.end_silent)
        for session in tuple(self.sessions):
            if self.world.now - session.heard_at >= session.timeout:
                session.end("silent")


class _Request:
    """Request on its way to the database."""

    __slots__ = ("future", "is_given_up", "is_run", "outcome", "run", "trip", "writes")

    def __init__(
        self,
        future: "asyncio.Future[Any]",
        run: Callable[[bool], Any],
        trip: Trip,
        *,
        writes: bool,
    ) -> None:
        self.future = future
        self.run = run
        self.trip = trip
        self.writes = writes
        self.is_given_up = False
        self.is_run = False
        self.outcome: Any = None


class Wire:
    """Connection of one process to the database, with delays and losses.

    Args:
        world: the clock, the lines and the failures of the run.
        database: the other end.
        name: the name of the run of a process, for its draws.
        place: the name of the process, for its faults and in lines.
        in_order: whether requests arrive in the order in which they were sent, as to one writer.
    """

    def __init__(
        self, world: World, database: Database, name: str, place: str, *, in_order: bool
    ) -> None:
        self.world = world
        self.database = database
        self.weather = database.weather
        self.name = name
        self.place = place
        self.is_cut = False  # the process is gone
        self.in_order = in_order
        self._prefix = world.name_of(name, "")
        self._arrives_at = 0.0
        self._counts: dict[str, int] = {}
        self._open: dict[tuple[str, int], _Request] = {}
        self.killed_at_commit: Callable[[bool], bool] = lambda _: False

    async def ask(self, name: str, run: Callable[[bool], Any], *, writes: bool) -> Any:
        """Send a request to the database, and return its result."""
        number = self._counts[name] = self._counts.get(name, 0) + 1
        world, weather = self.world, self.weather
        a, b, c, d = world.numbers_of(f"{self._prefix}{name}:{number}")
        trip = weather.trip(name, a, b, c, d, writes=writes)
        future = asyncio.get_running_loop().create_future()
        request = _Request(future, run, trip, writes=writes)
        arrives = world.now + trip.there
        if self.in_order:
            arrives = self._arrives_at = max(arrives, self._arrives_at)
        self._open[name, number] = request
        if not trip.is_lost:
            world.at(weather.until_reachable(self.place, arrives), self._arrive, request)
        end = world.after(trip.patience or ANSWER_SECONDS, self._out_of_time, request)
        try:
            return await future
        finally:
            world.cancel(end)
            self._open.pop((name, number), None)
            if future.cancelled() and d < 0.5 and writes:  # the unit was under way
                self._arrive(request)
            request.is_given_up = True

    def _arrive(self, request: _Request) -> None:
        """Run a request that has arrived, and send its answer."""
        if request.is_given_up or request.is_run:
            return
        if self.weather.is_out():
            error = UnavailableError("the database is out", Cause.UNREACHABLE)
            self._resolve(request, error)
            return
        if request.writes and self.killed_at_commit(False):
            return
        request.is_run = True
        try:
            request.outcome = request.run(request.trip.is_twice)
        except Exception as failure:  # of a unit that only reads, or of the store
            request.outcome = failure
        if request.writes and self.killed_at_commit(True):
            return
        if not request.trip.is_answer_lost:
            now = self.world.now
            back = self.weather.until_reachable(self.place, now) - now + request.trip.back
            self.world.after(back, self._deliver, request)

    def _deliver(self, request: _Request) -> None:
        self._resolve(request, request.outcome)

    def _out_of_time(self, request: _Request) -> None:
        if request.is_given_up or request.future.done():
            return
        request.is_given_up = True
        if request.is_run and request.writes:
            self._resolve(request, UnknownOutcomeError("the answer to a commit was lost"))
        else:
            self._resolve(request, UnavailableError("no answer in time", Cause.SILENT))

    def _resolve(self, request: _Request, answer: Any) -> None:
        if not self.is_cut:
            request.future.get_loop().call_soon(_resolve, request.future, answer)

    def cut(self) -> None:
        """Cut the connection of a dead process; commit some of its units that were under way."""
        self.is_cut = True
        for names, request in tuple(self._open.items()):
            if request.writes and self.world.numbers(self.name, "cut", *names)[0] < 0.5:
                self._arrive(request)
            request.is_given_up = True
        self._open.clear()


def _resolve(future: "asyncio.Future[Any]", answer: Any) -> None:
    """Give a future its result or exception, unless it is done."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _name_of(unit: Any) -> str:
    """Return the name of a unit, also of one with some arguments."""
    name: str = getattr(unit, "func", unit).__name__
    return name


class SimStore:
    """`Store` of one process.

    Args:
        wire: its way to the database.
        has_link: whether other processes may share the database.
        knows_ends: returns the nodes that have certainly ended; None where nothing says so.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        has_link: bool,
        knows_ends: Callable[[Collection[str]], list[str]] | None = None,
    ) -> None:
        self._wire = wire
        self._has_link = has_link
        self._knows_ends = knows_ends
        self._link: SimLink | None = None

    @property
    def node_id(self) -> str:
        """Identifier of the link's node; "" before the link is registered."""
        return "" if self._link is None else self._link.node_id

    async def write(self, unit: Any, *args: Any, **kwargs: Any) -> Any:
        """See `Store.write`."""
        wire, name = self._wire, _name_of(unit)

        def start(tx: Transaction) -> Any:
            return unit(tx, *args, **kwargs)

        def run(is_twice: bool) -> Any:
            return wire.database.write(wire.name, name, start, is_twice=is_twice)

        outcome = await wire.ask(name, run, writes=True)
        if outcome.error is not None:
            raise outcome.error
        for call in outcome.calls:
            call()
        return outcome.result

    async def read(self, unit: Any, *args: Any, **kwargs: Any) -> Any:
        """See `Store.read`."""
        wire = self._wire

        def run(_: bool) -> Any:
            return wire.database.read(lambda tx: unit(tx, *args, **kwargs))

        return await wire.ask(_name_of(unit), run, writes=False)

    async def scrub(self, _: Sequence[str]) -> bool:
        """See `Store.scrub`: a database in memory has no files."""
        return True

    def version(self) -> bytes | None:
        """See `Store.version`."""
        return None

    def health(self) -> Health:
        """See `Store.health`."""
        return Health()

    def set_aside(self) -> "SimStore":
        """See `Store.set_aside`."""
        return self

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """See `Store.claim`."""

    def link(self, timeout_seconds: float) -> "SimLink | None":
        """See `Store.link`."""
        if not self._has_link:
            return None
        self._link = SimLink(self._wire, timeout_seconds, self._knows_ends)
        return self._link

    async def close(self) -> None:
        """See `Store.close`."""


class _ServerSession:
    """Server's side of a link."""

    def __init__(self, link: "SimLink", timeout: float) -> None:
        self.link = link
        self.wire = link.wire
        self.timeout = timeout
        self.heard_at = link.wire.world.now
        self.has_lock = False
        self.is_over = False
        self._notified_at = 0.0
        self.wire.database.sessions.append(self)

    def notify(self, text: str) -> None:
        """Send a notice to the process; notices arrive in order."""
        wire = self.wire
        a, _, _, _ = wire.world.numbers(wire.name, "notice", wire.database.commits)
        when = wire.world.now + wire.weather.latency(a)
        when = wire.weather.until_reachable(wire.place, when)
        self._notified_at = max(self._notified_at, when)
        wire.world.at(self._notified_at, self._deliver, text)

    def _deliver(self, text: str) -> None:
        if not self.wire.is_cut and self.link.session is self:
            self.link.loop.call_soon(self.link.heard, self, text)

    def end(self, reason: str) -> None:
        """End the session and free its lock; notify the process if it can be reached."""
        if self.is_over:
            return
        self.is_over = True
        self.has_lock = False
        self.wire.database.sessions.remove(self)
        wire = self.wire
        wire.world.say(f"db      {wire.place} link ended: {reason}")
        when = wire.weather.until_reachable(wire.place, wire.world.now + GONE_SECONDS)
        wire.world.at(when, self._tell)

    def _tell(self) -> None:
        if not self.wire.is_cut and self.link.session is self:
            self.link.loop.call_soon(self.link.lost, self)


class SimLink:
    """`Link` like that of PostgreSQL.

    Args:
        wire: the way to the database.
        timeout_seconds: how long it may be silent before the server ends it.
        knows_ends: returns the nodes that have certainly ended; None where nothing says so.
    """

    def __init__(
        self,
        wire: Wire,
        timeout_seconds: float,
        knows_ends: Callable[[Collection[str]], list[str]] | None,
    ) -> None:
        self.wire = wire
        self.session: _ServerSession | None = None
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.node_id = ""
        self._timeout = timeout_seconds
        self._knows_ends = knows_ends
        self._on_notice: Callable[[str], None] = lambda _: None
        self._on_lost: Callable[[], None] = lambda: None

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """See `Link.connect`."""
        self._drop()
        self._on_notice, self._on_lost = on_notice, on_lost
        made: list[_ServerSession] = []

        def run(_: bool) -> None:
            made.append(_ServerSession(self, self._timeout))

        try:
            await self._answer("connect", run)
        except UnavailableError:
            for session in made:
                session.end("never used")
            raise
        if made[0].is_over:
            raise UnavailableError("the connection was lost", Cause.UNREACHABLE)
        self.session = made[0]

    async def register(self, node_id: str) -> None:
        """See `Link.register`."""
        self.node_id = node_id
        await self._statement("register", _REGISTER, node_id)

    async def renew(self, node_id: str) -> bool:
        """See `Link.renew`."""
        return bool(await self._statement("renew", _RENEW, node_id))

    async def exited(self, node_ids: Collection[str]) -> list[str]:
        """See `Link.exited`."""
        return [] if self._knows_ends is None else self._knows_ends(node_ids)

    async def end_hanging(self) -> int:
        """See `Link.end_hanging`: a simulated server frees the locks of a lost session itself."""
        return 0

    async def try_to_sweep(self) -> bool:
        """See `Link.try_to_sweep`."""
        session = self._connected()
        if not session.has_lock:
            await self._answer("lock", lambda _: self._heard(session).take_lock(session))
        return session.has_lock

    async def is_unswept(self) -> bool:
        """See `Link.is_unswept`."""
        session = self._connected()

        def run(_: bool) -> bool:
            return not any(each.has_lock for each in self._heard(session).sessions)

        return bool(await self._answer("unswept", run))

    async def close(self) -> None:
        """See `Link.close`."""
        self._drop()

    def heard(self, session: _ServerSession, text: str) -> None:
        """Handle a notice from the server."""
        if self.session is session:
            self.wire.database.heard(self.wire.name, self.node_id, text)
            self._on_notice(text)

    def lost(self, session: _ServerSession) -> None:
        """Handle the end of the session by the server."""
        if self.session is session:
            self.session = None
            self._on_lost()

    def _connected(self) -> _ServerSession:
        if self.session is None:
            raise UnavailableError("not connected", Cause.UNREACHABLE)
        return self.session

    def _heard(self, session: _ServerSession) -> Database:
        """Record that the database got a message of a session, and return the database."""
        if session.is_over:
            raise UnavailableError("the connection was lost", Cause.UNREACHABLE)
        session.heard_at = self.wire.world.now
        return self.wire.database

    async def _statement(self, name: str, sql: str, node_id: str) -> int:
        session = self._connected()

        async def unit(tx: Transaction) -> int:
            return await tx.run(sql, id=node_id)

        def run(_: bool) -> Any:
            database = self._heard(session)
            return database.write(self.wire.name, name, unit, is_twice=False, is_link=True)

        outcome = await self._answer(name, run, writes=True)
        if outcome.error is not None:
            raise outcome.error
        return int(outcome.result)

    async def _answer(self, name: str, run: Callable[[bool], Any], *, writes: bool = False) -> Any:
        try:
            async with asyncio.timeout(self._timeout / ANSWERS_PER_TIMEOUT):
                return await self.wire.ask(f"link {name}", run, writes=writes)
        except UnavailableError:
            self._drop()
            raise
        except TimeoutError as error:
            self._drop()
            raise UnavailableError("no answer in time", Cause.SILENT) from error

    def _drop(self) -> None:
        session, self.session = self.session, None
        if session is not None and not session.is_over:
            wire = self.wire
            when = wire.weather.until_reachable(wire.place, wire.world.now + GONE_SECONDS)
            wire.world.at(when, session.end, "dropped")
