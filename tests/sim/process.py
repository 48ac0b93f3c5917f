"""Daemon of a run: the product's own core over a simulated store, without sockets.

The product builds its parts, starts them, and stops them (`core` and `build_core` in
`proxyd.wiring`). This module has the machine's clocks and the death of a process.
`clients.Connection` takes the place of the gateway's handshakes, and `clients.Relay` that of its
relays.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.settings import (
    AccessLogSettings,
    AuthSettings,
    ClusterSettings,
    ExitSettings,
    JobSettings,
    LimitSettings,
    Settings,
    StorageSettings,
    WorkSettings,
)
from market.bandwidth.leases import Usage
from market.base.states import SessionStatus
from proxyd.loop.clock import Clocks
from proxyd.metering.meter import MeterBounds
from proxyd.wiring.build_core import core_of, counting_of
from proxyd.wiring.build_services import PaymentServices, Ports, trade_of
from proxyd.wiring.core import Core
from proxyd.wiring.market_work import CheckTimes
from storage.engines.errors import StoreError
from tests.sim import samples
from tests.sim.checks import Books
from tests.sim.clients import PASSWORDLESS
from tests.sim.exit_ports import SimPort
from tests.sim.faults import Mode
from tests.sim.folder import Folder
from tests.sim.labels import LabelBooks
from tests.sim.lines import Lines
from tests.sim.loop import SimLoop, World
from tests.sim.store import EPOCH, Database, SimStore, Wire

if TYPE_CHECKING:
    from tests.sim.webhooks import SimSender

KEY = b"k" * 40
# A run takes less than a minute.
CHECKS = CheckTimes(exit_payout_seconds=5.0, exit_advance_seconds=3.0)
# The service manager restarts a daemon after a similar time.
RESTART_SECONDS = 0.5
# The API waits this long for requests in progress.
REQUESTS_SECONDS = 5.0
# Not even root can make a file there: nothing of a run without files is written.
FOLDER = Path("/proc/simulated")
# Of a run without files.
NO_FILES = WorkSettings(folder=str(FOLDER))


def settings_of(
    mode: Mode,
    timeout_seconds: float,
    pace: int,
    connections: int,
    *,
    sample_credits: Decimal | None = None,
    work: WorkSettings,
) -> Settings:
    """Return the operator's settings."""
    account = "" if sample_credits is None else samples.ACCOUNT
    url = "postgresql://simulated/proxyd" if mode.is_remote else f"sqlite:///{FOLDER}/proxyd.db"
    return Settings(
        access_log=AccessLogSettings(target="none"),  # hashes need a key, which is a file
        # Passwords take microseconds.
        auth=AuthSettings(argon2_time_cost=1, argon2_memory_kib=64),
        jobs=JobSettings(
            sample_account=account,
            sample_credits_per_day=sample_credits or samples.SAMPLE_CREDITS[0],
        ),
        storage=StorageSettings(url=url),
        cluster=ClusterSettings(node_timeout_seconds=timeout_seconds),
        limits=LimitSettings(session_bytes_per_second=pace, connections_per_session=connections),
        exits=ExitSettings(payout_hold_days=0),
        work=work,
    )


class Process:
    """Place of a daemon, with the daemon that runs there now.

    Args:
        world: the clock, the lines and the failures of the run.
        name: the name of the process.
        number: the number of the process, from 0.
        mode: how it shares the database.
        settings: the operator's settings.
        database: the database.
        knows_ends: returns the nodes that have certainly ended; None where nothing says so.
        metering: the bounds of its meter.
        books: records the ends of sessions.
    """

    def __init__(
        self,
        world: World,
        name: str,
        number: int,
        mode: Mode,
        settings: Settings,
        database: Database,
        knows_ends: Callable[[Collection[str]], list[str]] | None,
        metering: MeterBounds,
        books: Books,
    ) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.mode = mode
        self.settings = settings
        self.database = database
        self.knows_ends = knows_ends
        self.metering = metering
        self.books = books
        # Lead to devices; None where the run has none.
        self.lines: Lines | None = None
        # Watch the labels of exits; None where the run has none.
        self.labels: LabelBooks | None = None
        # Has the files of jobs; None where the run has none.
        self.folder: Folder | None = None
        # Return the services that move money outside, in a run with money.
        self.services_of: Callable[[Life], PaymentServices | None] = lambda _: None
        self.checks = CHECKS
        self.starts = 0
        self.is_wanted = True
        self.life: Life | None = None

    @property
    def has_services(self) -> bool:
        """Whether the process has the marketplace."""
        return self.mode.is_remote or self.number == 0

    @property
    def serving(self) -> "Life | None":
        """The daemon, if it serves clients; else None."""
        return self.life if self.life is not None and self.life.is_serving else None

    def start(self) -> None:
        """Start a daemon, unless one runs or none is wanted."""
        if self.life is None and self.is_wanted:
            self.starts += 1
            self.life = Life(self, f"{self.name}.{self.starts}")

    def ended(self, life: "Life") -> None:
        """Start another daemon soon, after one has ended."""
        if self.life is life:
            self.life = None
            self.world.after(RESTART_SECONDS, self.start)

    def kill(self, *, with_machine: bool = False, pause: float = 0.0) -> None:
        """Kill the daemon, if one runs; start it again after a while."""
        life, self.life = self.life, None
        if life is not None:
            life.kill(with_machine=with_machine)
        self.world.after(pause + RESTART_SECONDS, self.start)

    def stop(self, pause: float = 0.0) -> None:
        """Stop the daemon in order."""
        if self.life is not None:
            self.life.pause = pause
            self.life.loop.call_soon(self.life.stop)

    def freeze(self, seconds: float, *, with_machine: bool) -> None:
        """Freeze the daemon for some seconds, without a signal that it notices."""
        life = self.life
        if life is None or life.loop.is_frozen:
            return
        began = self.world.now
        life.loop.freeze()
        self.world.say(f"{life.name} frozen")

        def thaw() -> None:
            if not life.loop.is_dead:
                life.loop.thaw(self.world.now - began if with_machine else 0.0)
                self.world.say(f"{life.name} goes on")

        self.world.after(seconds, thaw)


class Life:
    """One run of a daemon.

    Args:
        process: the process that it runs in.
        name: the name of this run.
    """

    def __init__(self, process: Process, name: str) -> None:
        world = process.world
        self.process = process
        self.name = name
        self.loop = SimLoop(world, name)
        self.wire = Wire(
            world, process.database, name, process.name, in_order=not process.mode.is_remote
        )
        self.core: Core | None = None
        self.market: Any = None
        # Takes devices; None where the run has none.
        self.port: SimPort | None = None
        self.is_serving = False
        self.is_stopping = False
        self.began_at = world.now
        self.stopped_in = 0.0
        self.pause = 0.0
        self.relays: dict[Any, None] = {}
        self.closings: dict[Any, None] = {}
        self.requests: dict[Any, None] = {}
        self.callers: dict[Callable[[], None], None] = {}
        self.store: SimStore | None = None
        self.sender: SimSender | None = None
        world.say(f"{name} starts")
        self._asyncio_run(self._main())

    def _asyncio_run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.call_soon(lambda: self.loop.create_task(work, name="main"))

    # --- its parts -------------------------------------------------------------------------------

    def _clocks(self) -> Clocks:
        world, weather, place = self.process.world, self.wire.weather, self.process.name

        def wall() -> float:
            leapt = self.process.database.leapt
            return EPOCH + world.now + leapt + weather.of_wall_clock(place)

        return Clocks(
            lambda: int(wall()), lambda: int(wall() * 1_000), lambda: world.now, self.loop.time
        )

    async def _main(self) -> None:
        process = self.process
        settings, clocks = process.settings, self._clocks()
        self.store = store = SimStore(
            self.wire, has_link=process.mode.has_link, knows_ends=process.knows_ends
        )
        lines = process.lines
        if lines is not None:
            assert process.labels is not None
            self.port = SimPort(
                process.world, lines, self.name, self.loop, process.number, process.labels
            )
        counting = counting_of(
            settings,
            store,  # type: ignore[arg-type]
            clocks,
            (lambda _: None) if self.port is None else self.port.directory.forget,
            process.metering,
            has_services=process.has_services,
        )
        work = None
        if process.has_services:
            trade = trade_of(
                settings,
                Ports(80, 1080, PASSWORDLESS),
                KEY,
                counting,
                clocks,
                process.checks,
                services=process.services_of(self),
            )
            self.market, work = trade.market, trade.work
            if self.port is not None:
                self.port.build(settings, counting, trade.market, KEY, clocks)
        self.core = core_of(counting, work)
        self._note_ends(self.core.meter)
        try:
            await self.core.start(logging.DEBUG)
        except StoreError as error:
            process.world.say(f"{self.name} cannot start: {error}")
            self._over()
            return
        if process.books.senders is not None and self.market is not None:
            self.sender = process.books.senders.begin(self)
        if self.port is not None:
            self.port.start(self.core.tasks)
        self.is_serving = True
        process.world.say(f"{self.name} serves")

    def _note_ends(self, meter: Any) -> None:
        """Record the sessions that the marketplace of this process cuts or restores."""
        books, cut, restore = self.process.books, meter.cut, meter.restore

        def noted_cut(session_id: str, status: SessionStatus) -> Usage | None:
            books.begins_end(self.name, session_id)
            usage: Usage | None = cut(session_id, status)
            return usage

        def noted_restore(session_id: str) -> None:
            books.takes_back(self.name, session_id)
            restore(session_id)

        meter.cut, meter.restore = noted_cut, noted_restore

    @property
    def link_node_id(self) -> str:
        """Identifier of the node whose named pipe this process has open."""
        return "" if self.store is None else self.store.node_id

    # --- its end ---------------------------------------------------------------------------------

    def kill(self, *, with_machine: bool) -> None:
        """Kill the daemon, perhaps with its machine."""
        self.process.world.say(f"{self.name} killed{' with its machine' if with_machine else ''}")
        self.is_serving = False
        self.loop.kill()
        self.wire.cut()
        for session in tuple(self.process.database.sessions):
            if session.wire is self.wire and not (with_machine and self.process.mode.is_remote):
                session.end("killed")
        if self.process.folder is not None:
            self.process.folder.died(self.loop)
        for relay in (*self.relays, *self.closings):
            relay.died(with_machine=with_machine)
        if self.process.lines is not None:
            self.process.lines.died(self.loop, with_machine=with_machine)
        self._lose_callers()

    def _lose_callers(self) -> None:
        """Break the connections of the open requests, as the end of a process does."""
        for lost in tuple(self.callers):
            lost()

    def stop(self) -> None:
        """Stop in order."""
        if not self.is_stopping and self.is_serving:
            self.is_stopping = True
            self._asyncio_run(self._stop())

    async def _stop(self) -> None:
        assert self.core is not None
        began = self.process.world.now
        self.process.world.say(f"{self.name} stops")
        self.is_serving = False
        for relay in tuple(self.relays):
            relay.abort()
        for closing in tuple(self.closings):
            closing.finish()
        if self.market is not None:
            self.market.event_feed.end()
        if self.requests:
            await asyncio.wait(tuple(self.requests), timeout=REQUESTS_SECONDS)
            for request in tuple(self.requests):
                request.cancel()
        if self.sender is not None:
            await self.sender.close()
        if self.port is not None:
            await self.port.stop()
        await self.core.stop()
        self.stopped_in = self.process.world.now - began
        self.process.world.say(f"{self.name} stopped")
        self._over()

    def _over(self) -> None:
        """End the process, and schedule the next start."""
        world, process = self.process.world, self.process

        def end() -> None:
            self.is_serving = False
            if not self.loop.is_dead:
                self.loop.kill()
                self.wire.cut()
                if process.folder is not None:
                    process.folder.died(self.loop)
                if process.lines is not None:
                    process.lines.died(self.loop, with_machine=False)
                for session in tuple(process.database.sessions):
                    if session.wire is self.wire:
                        session.end("ended")
                self._lose_callers()
                if process.life is self:
                    process.life = None
                    world.after(self.pause + RESTART_SECONDS, process.start)

        world.after(0.0, end)
