"""One run, from the first start of a daemon to the last check."""

import asyncio
import gc
import logging
import random
import secrets
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random, SystemRandom
from types import SimpleNamespace
from typing import Any

import msgspec
from support.base.generators import watched
from support.market.exits import claw_back

import proxyd.wiring.tasks
from market.bandwidth.leases import RECALL_SECONDS
from market.base.errors import MarketError
from market.logs.readers import Reader
from proxyd.exits.attached.control import Control
from proxyd.exits.watching import canaries
from proxyd.metering.lease_slices import LOW_BYTES
from proxyd.metering.meter import MeterBounds
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import MemoryBounds
from storage.blobs.local import FileThreads
from tests.sim import jobs, usage
from tests.sim.acts import Acts
from tests.sim.checks import AFTERMATH_SECONDS, Books
from tests.sim.clients import Buyer, Client, ClientPlan, Network, RequestError, StaffPlan
from tests.sim.datagrams import Datagrams
from tests.sim.exit_checks import EXIT_COMMITS, ExitBooks
from tests.sim.exit_plans import device_id_of
from tests.sim.exit_story import EXITS_SECONDS, ExitStory
from tests.sim.faults import Fault, Weather
from tests.sim.files import WORK
from tests.sim.folder import Folder
from tests.sim.jobs import DeviceAgent, JobBuyer, Records
from tests.sim.loop import SimLoop, SimTask, World
from tests.sim.money.template import with_money
from tests.sim.process import NO_FILES, Life, Process, settings_of
from tests.sim.relays import Numbered, Relay, exit_name
from tests.sim.scenario import Scenario
from tests.sim.store import ANSWER_SECONDS, EPOCH, Commit, Database
from tests.sim.template import template
from tests.sim.usage import UsageReader

PROBE_SECONDS = 15.0
# Other nodes return bytes within a second.
WAIT_SECONDS = 4.0
FREE_SECONDS = 1.5
PROBE_BYTES = 1_500
STOP_SECONDS = 5.0
# A process that should die at a commit dies within this time, or not at all.
COMMIT_SECONDS = 5.0
# Longest time of the calm end of a run: probes, ends and stops.
REST_SECONDS = 400.0
# Number of an address that no session lists.
NOWHERE = 99
PROBE = ClientPlan(
    session=0,
    node=0,
    at=0.0,
    size=PROBE_BYTES,
    chunk=700,
    pause=0.001,
    rate=100_000_000,
    gives_up=None,
    rests=0.2,
    roams=False,
)
_USED_UP = "SELECT id FROM bandwidth_sessions WHERE status = 'active' AND bytes_used = quota_bytes"
# Parts of log lines that the product must never write.
NEVER = (
    "report rejected",
    "lease reduced",
    "cannot be settled",
    "forgotten lease",
    "sweep failed",
    "ignores every cancellation",
    "takes longer than",
    "looking a session up failed",
)
# An account that has got money since it was closed waits, and its sweep says so.
NOT_EMPTY = "cannot be erased"


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        scenario: the plan of the run.
        failures: the broken rules; none if all is well.
        error: the exception behind the first of them, if there is one.
        digest: the hash of all lines.
        lines: the last ones.
        seconds: the virtual time in seconds.
        commits: the number of units that were run.
        callbacks: the number of callbacks.
        slowest_end: the longest request to end a session, in seconds.
    """

    scenario: Scenario
    failures: tuple[str, ...]
    error: BaseException | None
    digest: str
    lines: tuple[str, ...]
    seconds: float
    commits: int
    callbacks: int
    slowest_end: float


def run(scenario: Scenario, *, is_loud: bool = False) -> Outcome:
    """Run a scenario."""
    world = World(scenario.seed, is_loud=is_loud)
    SimTask.count = Numbered.count = 0
    template(has_exits=False)  # made once, with secrets of its own
    template(has_exits=True)
    if scenario.acts.money is not None:
        with_money(has_exits=bool(scenario.links.devices))
    gc.disable()
    try:
        files = scenario.acts.files
        folder = None if files is None else Folder(world, files.full)
        has_folder: AbstractContextManager[None] = (
            nullcontext() if folder is None else folder.installed()
        )
        with (
            _drawn_secrets(world),
            _logged(world, folder),
            _closed_generators(world),
            has_folder,
        ):
            simulation = Simulation(world, scenario, folder)
            try:
                simulation.run()
            except Exception as error:
                world.fail(f"the simulation: {error!r}", error)
            finally:
                world.end()
                simulation.database.close()
            return Outcome(
                scenario,
                tuple(world.failures),
                world.error,
                world.digest,
                tuple(world.lines),
                world.now,
                simulation.database.commits,
                world.callbacks,
                simulation.books.slowest_end,
            )
    finally:
        gc.enable()


class Simulation:
    """A scenario in its world, and the course of the run.

    Args:
        world: the clock, the lines and the failures of the run.
        scenario: the plan of the run.
        folder: has the files; None where the run has none.
    """

    def __init__(self, world: World, scenario: Scenario, folder: Folder | None) -> None:
        self.world = world
        self.folder = folder
        self.scenario = scenario
        mode = scenario.mode
        names = [f"node{each}" for each in range(scenario.nodes)]
        self.weather = Weather(scenario.faults, names, lambda: world.now, scenario.skew)
        self.books = Books(world, scenario.timeout)
        make = template if scenario.acts.money is None else with_money
        content = make(has_exits=bool(scenario.links.devices))
        self.database = Database(world, content, self.weather, self._committed)
        # By job: the run of the process that has stored it.
        self._posted_at: dict[str, str] = {}
        # By the run of a process and a unit of it: the nap that follows it.
        self._naps: dict[tuple[str, str], Callable[[], None]] = {}
        self.books.database, self.books.weather = self.database, self.weather
        self.books.knows_ends = not mode.is_remote
        settings = settings_of(
            mode,
            scenario.timeout,
            scenario.pace,
            scenario.connections,
            sample_credits=scenario.acts.sample_credits if scenario.acts.has_samples else None,
            work=NO_FILES
            if folder is None
            else msgspec.structs.replace(WORK, folder=str(folder.root)),
        )
        self.database.heard = self.books.hears
        knows_ends = None if mode.is_remote else self._ended
        metering = MeterBounds(memory=MemoryBounds(remember_seconds=scenario.remember))
        self.processes = [
            Process(
                world, name, number, mode, settings, self.database, knows_ends, metering, self.books
            )
            for number, name in enumerate(names)
        ]
        self.network = Network(world, self.weather, self.processes, self.books)
        for each in self.processes:
            each.folder = folder
        self.acts = Acts(
            self.network,
            scenario.acts,
            scenario.seconds,
            has_clocks=self._has_clocks(),
            folder=folder,
        )
        self.network.relay_of = lambda plan: Datagrams if plan.is_datagrams else Relay
        self.outside = SimLoop(world, "outside")
        self.exit_books = ExitBooks(world, self.books, self.database)
        self.exits: ExitStory | None = None
        if scenario.links.devices:
            self.exits = ExitStory(self.network, scenario.links, self.exit_books, PROBE)
        self.buyers = [
            Buyer(self.network, plan, number, f"user{number % 4}")
            for number, plan in enumerate(scenario.sessions)
        ]
        # Clients go on until every lost answer was given up, and bytes were shared anew.
        self.busy_seconds = ANSWER_SECONDS + WAIT_SECONDS + 1.0
        calm = RECALL_SECONDS + 2 * scenario.timeout + AFTERMATH_SECONDS + 0.5
        self.calm_seconds = max(calm, self.busy_seconds + 2.0)
        self._clients: list[asyncio.Task[Any]] = []
        self._agents: list[DeviceAgent] = []
        self.records = Records()
        self._readers: list[UsageReader] = []

    def run(self) -> None:
        """Run the scenario, and check the results."""
        world, scenario = self.world, self.scenario
        world.say(str(scenario))
        for process in self.processes:
            world.at(0.01 * process.number, process.start)
        for fault in scenario.faults:
            world.say(f"fault   {fault}")
            world.at(fault.at, self._strike, fault)
        self.database.end_silent()
        self.outside.call_soon(lambda: self.outside.create_task(self._story()))
        limit = scenario.seconds + self.calm_seconds + REST_SECONDS
        limit += EXITS_SECONDS if self.exits is not None else 0.0
        world.run(limit)
        if not (world.is_over or world.failures):
            world.fail("the run does not end")
        if not world.failures:
            self.books.at_the_end()
            jobs.check(self.records, self.database.rows, world.fail)
            self.acts.check(self.records)
            self._check_once()
            self.exit_books.at_the_end(self.database.rows)
        world.say(f"end     {self.database.commits} commits")

    def _check_once(self) -> None:
        """Fail if a request with an Idempotency-Key took effect twice; keys last a day of the wall
        clock.
        """
        if self._has_clocks():
            return
        ((count,),) = self.database.rows(
            "SELECT COUNT(*) FROM bandwidth_sessions WHERE user_id LIKE 'user%'"
        )
        if count > len(self.buyers):
            self.world.fail(f"{count} sessions were bought by {len(self.buyers)} requests")
        most = {f"job{each}": plan.copies for each, plan in enumerate(self.scenario.jobs)}
        for title, count in self.database.rows("SELECT title, COUNT(*) FROM jobs GROUP BY title"):
            if count != most.get(title, count):
                self.world.fail(f"{title} was posted {count} times")

    # --- what goes wrong -------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        process = self.processes[fault.target % len(self.processes)]
        self.world.say(f"fault   {fault}")
        strike = {
            "kill": self._kill,
            "machine": self._machine_dies,
            "commit": self._kill_at_commit,
            "spent": self._kill_when_spent,
            "nap": self._nap,
            "stop": lambda process, fault: process.stop(fault.seconds),
            "freeze": lambda process, fault: process.freeze(fault.seconds, with_machine=False),
            "sleep": self._machine_sleeps,
            "link": self._end_link,
            "cut": self._cut_clients,
        }.get(fault.kind)
        if strike is not None:
            strike(process, fault)

    def _on_machine(self, process: Process) -> list[Process]:
        """Return the processes on the machine of a process."""
        return [process] if self.scenario.mode.is_remote else self.processes

    def _kill(self, process: Process, fault: Fault) -> None:
        process.kill(pause=fault.seconds)

    def _machine_dies(self, process: Process, fault: Fault) -> None:
        for each in self._on_machine(process):
            each.kill(with_machine=True, pause=fault.seconds)
        if self.folder is not None and not self.scenario.mode.is_remote:
            self.folder.lose_power()

    def _machine_sleeps(self, process: Process, fault: Fault) -> None:
        for each in self._on_machine(process):
            each.freeze(fault.seconds, with_machine=True)

    def _end_link(self, process: Process, _: Fault) -> None:
        for session in tuple(self.database.sessions):
            if session.wire.place == process.name:
                session.end("lost")

    def _cut_clients(self, process: Process, _: Fault) -> None:
        if process.life is not None:
            for relay in tuple(process.life.relays):
                process.life.loop.call_soon(relay.reset)

    def _kill_at_commit(self, process: Process, fault: Fault) -> None:
        life = process.life
        if life is None:
            return
        number = int(fault.value)
        left = number // 2
        until = min(fault.at + COMMIT_SECONDS, self.scenario.seconds)

        def is_killed(is_after: bool) -> bool:
            nonlocal left
            if self.world.now > until:
                return False
            if is_after == bool(number % 2):
                left -= 1
                if left < 0:
                    life.wire.killed_at_commit = lambda _: False
                    if process.life is life:
                        process.kill(pause=fault.seconds)
                        return True
            return False

        life.wire.killed_at_commit = is_killed

    def _kill_when_spent(self, process: Process, fault: Fault) -> None:
        """Kill a process after it wrote that a session is used up, or before its next unit."""
        life = process.life
        if life is None:
            return

        def is_killed(is_after: bool) -> bool:
            if self.world.now > self.scenario.seconds or is_after == bool(fault.value):
                return False
            if not self.database.rows(_USED_UP):
                return False
            life.wire.killed_at_commit = lambda _: False
            if process.life is life:
                process.kill(pause=fault.seconds)
            return True

        life.wire.killed_at_commit = is_killed

    def _nap(self, process: Process, fault: Fault) -> None:
        """Freeze a process at its next opening of a lease, or its machine at its next renewal."""
        life = process.life
        if life is None:
            return
        is_opening = bool(fault.value)
        seconds = min(fault.seconds, self.scenario.seconds - self.world.now)

        def nap() -> None:
            if process.life is life and self.world.now < self.scenario.seconds - seconds:
                process.freeze(seconds, with_machine=not is_opening)

        self._naps[life.name, "open_lease" if is_opening else "renew"] = nap

    def _committed(self, commit: Commit) -> None:
        self.books.committed(commit)
        self.acts.committed(commit)
        if commit.name in EXIT_COMMITS:
            self.exit_books.committed()
        elif commit.name == "create":
            for (job_id,) in self.database.rows("SELECT id FROM jobs"):
                self._posted_at.setdefault(job_id, commit.process)
        if self._naps:
            nap = self._naps.pop((commit.process, commit.name), None)
            if nap is not None:
                nap()

    def _ended(self, node_ids: Collection[str]) -> list[str]:
        """Return the nodes whose processes have ended, as named pipes would show."""
        living = {
            each.life.link_node_id
            for each in self.processes
            if each.life is not None and not each.life.loop.is_dead
        }
        return [each for each in node_ids if each not in living]

    # --- the story -------------------------------------------------------------------------------

    async def _story(self) -> None:
        scenario, world = self.scenario, self.world
        loop = asyncio.get_running_loop()
        buyers = [loop.create_task(each.run()) for each in self.buyers]
        until = scenario.seconds + self.busy_seconds
        workers = self._begin_work(until)
        if self.exits is not None:
            self.exits.begin(scenario.seconds)
        staff = [loop.create_task(self._work(plan)) for plan in scenario.staff]
        self._clients = [
            loop.create_task(
                Client(
                    self.network, plan, self.buyers[plan.session], f"client{number}", until
                ).run()
            )
            for number, plan in enumerate(scenario.clients)
            if plan.session < len(self.buyers)
        ]
        await asyncio.sleep(scenario.seconds)
        world.say("calm")
        await asyncio.sleep(self.busy_seconds - FREE_SECONDS - 0.1)
        before = self._waiting()
        await asyncio.sleep(FREE_SECONDS)
        for relay in self._waiting() & before:
            world.fail(
                f"a connection of {relay.session.id[-6:]} at {relay.life.name} waits for bytes,"
                " and there are some that no node uses"
            )
        self.books.look_at_over(self._lives())
        await self._look_at_supply()
        await asyncio.sleep(self.calm_seconds - self.busy_seconds + 0.1)
        self._look_at_used_up()
        await _all(self._clients)
        await _all(workers)
        for task in staff:
            if not task.done():
                world.fail("the operator's request is not answered")
        for each in buyers:
            if not each.done():
                world.fail("a buyer's request is not answered")
        self.books.look_at_idle(self._lives())
        if self.exits is not None:
            await self.exits.look(self.buyers, lambda: {each for each, _ in self._active()})
        await self._probe()
        await self._end_all()
        for reader in self._readers:
            await self._last("last usage", reader.last_look)
        await self.acts.end(self._last)
        await self._end_jobs()
        await self.acts.later(self._last)
        for process in self.processes:
            await self._stop(process)
        world.stop()

    async def _look_at_supply(self) -> None:
        """Compare the view of the supply at each daemon with the devices that ask there."""
        for life in self._lives():
            if life.process.has_services and self._agents:
                try:
                    await self.network.request("supply", self.network.supply.look, life)
                except RequestError as error:
                    self.world.fail(f"the supply is not shown, and nothing is broken: {error}")

    def _begin_work(self, until: float) -> list[asyncio.Task[None]]:
        """Start the buyers of jobs and the devices; return their tasks."""
        loop = asyncio.get_running_loop()
        buyers = [
            JobBuyer(self.network, plan, number, until)
            for number, plan in enumerate(self.scenario.jobs)
        ]
        self._agents = [self.acts.agent(plan, self.records, until) for plan in self.scenario.agents]
        self._agents += self.acts.agents(self.records, until)
        acts = self.acts.tasks(self.records, until)
        if self.world.draw("usage").random() < usage.SHARE:
            users = sorted({each.user_id for each in self.buyers})
            self._readers = [
                UsageReader(self.network, user_id, number, until)
                for number, user_id in enumerate(users)
            ]
        work = (*buyers, *self._agents, *self._readers)
        return [*acts, *(loop.create_task(each.run()) for each in work)]

    async def _end_jobs(self) -> None:
        """Cancel the open jobs; fail if a job waited for long while a device was idle."""
        until = EPOCH + int(self.scenario.seconds)
        idle = [each for each in self._agents if each.is_idle]
        living = {each.life.name for each in self.processes if each.life is not None}
        # Each copy needs a device of another owner.
        single = {
            f"job{number}" for number, plan in enumerate(self.scenario.jobs) if plan.copies == 1
        }
        for job_id, user_id, title, status, attempts, created_at in self.database.rows(
            "SELECT id, user_id, title, status, attempts, created_at FROM jobs"
            " WHERE status IN ('waiting', 'running') ORDER BY id"
        ):
            is_old = status == "waiting" and not attempts and created_at < until
            # A daemon that was killed, or whose request was cancelled after the commit, may have
            # sent no notice of its jobs. Daemons find them within a minute, and the devices stop
            # before.
            is_old = is_old and self._posted_at.get(job_id) in living
            is_old = is_old and f"{title} post" not in self.network.cancelled
            if is_old and title in single and idle and not self._has_clocks():
                self.world.fail(f"job {job_id[-6:]} waits, and {idle[0].name} has nothing to do")
            await self._cancel(user_id, job_id)

    def _has_clocks(self) -> bool:
        """Return whether wall clocks were changed, so that rows have wrong times."""
        return any(each.kind == "clock" for each in self.scenario.faults)

    async def _cancel(self, user_id: str, job_id: str) -> None:
        await self._last("last cancel", lambda market: market.jobs.cancel(user_id, job_id))

    async def _last(self, what: str, make: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Send a request once nothing is broken; a refusal is allowed."""
        life = next(each.serving for each in self.processes if each.has_services)
        if life is None:
            self.world.fail("a daemon does not serve though nothing is broken")
            return
        try:
            await self.network.request(what, make, life)
        except RequestError as error:
            if not isinstance(error.__cause__, MarketError):  # a copy ends with another one
                self.world.fail(f"{what} fails, and nothing is broken: {error}")

    async def _work(self, plan: StaffPlan) -> None:
        """Do an action of the operator; repeat it until it succeeds."""
        await asyncio.sleep(plan.at)
        device_id = exit_name(plan.exit)
        if devices := self.scenario.links.devices:
            device_id = device_id_of(devices[plan.exit % len(devices)].number)

        async def make(market: Any) -> None:
            if plan.what == "bar":
                await claw_back(market.context, device_id, "it has cheated")
            else:
                await market.exit_advances.advance()

        number = 0
        while True:
            with_market = [
                each.serving
                for each in self.processes
                if each.serving is not None and each.has_services
            ]
            if with_market:
                try:
                    life = with_market[(plan.exit + number) % len(with_market)]
                    await self.network.request(plan.what, make, life)
                    self.world.say(f"staff {plan.what} {device_id}")
                    return
                except RequestError as error:
                    self.world.say(f"staff {plan.what}: {error}")
                    if isinstance(error.__cause__, MarketError):  # it was never an exit
                        return
            number += 1
            await asyncio.sleep(0.3)

    def _active(self) -> list[tuple[str, str]]:
        soon = EPOCH + int(self.world.now + PROBE_SECONDS)
        return [
            (session_id, user_id)
            for session_id, user_id, expires_at in self.database.rows(
                "SELECT id, user_id, expires_at FROM bandwidth_sessions WHERE status = 'active'"
                " ORDER BY id"
            )
            if expires_at > soon
        ]

    def _waiting(self) -> set[Relay]:
        """Return the connections that wait for bytes although their session has unused bytes."""
        waiting = set()
        free = {
            session_id: quota - used - leased
            for session_id, quota, used, leased in self.database.rows(
                "SELECT id, quota_bytes, bytes_used, bytes_leased FROM bandwidth_sessions"
                " WHERE status = 'active'"
            )
        }
        for life in self._lives():
            for relay in life.relays:
                session_id, since = relay.session.id, relay.waits_since
                if since is None or life.loop.time() - since < WAIT_SECONDS:
                    continue
                if session_id in free and self._elsewhere(session_id, life) + free[session_id]:
                    waiting.add(relay)
        return waiting

    def _lives(self) -> list[Life]:
        """Return the serving daemons."""
        return [each.serving for each in self.processes if each.serving is not None]

    def _elsewhere(self, session_id: str, here: Life) -> int:
        """Return the bytes of a session that other nodes should have returned."""
        total = 0
        for process in self.processes:
            life = process.serving
            if life is None or life is here or life.core is None:
                continue
            session = life.core.meter.sessions.get(session_id)
            if session is not None and session.available > 2 * LOW_BYTES:
                total += session.available
        return total

    def _look_at_used_up(self) -> None:
        """Fail if a session without a byte left is not settled."""
        for (session_id,) in self.database.rows(_USED_UP):
            self.world.fail(f"{session_id[-6:]} is used up, and is not settled")

    async def _probe(self) -> None:
        """Fail if a daemon does not admit a client of an active session, or does not carry its
        bytes.
        """
        active = {each for each, _ in self._active()}
        loop = asyncio.get_running_loop()
        await _all(
            [
                loop.create_task(self._probe_one(buyer, process, address))
                for buyer in self.buyers
                for process in self.processes
                if buyer.bought is not None and buyer.bought.session_id in active
                for address in (None, *self._proved(buyer.bought.session_id))
            ]
        )

    def _proved(self, session_id: str) -> list[int]:
        """Return the numbers of the addresses that open a session."""
        rows = self.database.rows(
            "SELECT address FROM session_addresses WHERE session_id = :id ORDER BY address",
            id=session_id,
        )
        return [int(address.rpartition(".")[2]) - 1 for (address,) in rows]

    async def _probe_one(self, buyer: Buyer, process: Process, address: int | None) -> None:
        world, bought = self.world, buyer.bought
        assert bought is not None
        name = f"probe{buyer.number}-{process.number}-{address}"
        plan = replace(
            PROBE,
            session=buyer.number,
            node=process.number,
            address=NOWHERE if address is None else address,
            by_address=address is not None,
        )
        deadline = world.now + PROBE_SECONDS
        reason = "never"
        while world.now < deadline:
            life = process.serving
            if life is not None:
                connection = await self.network.connect(life, bought, plan, name)
                reason = connection.refusal
                if not reason:
                    try:
                        async with asyncio.timeout(deadline - world.now):
                            reason, _ = await connection.over
                    except TimeoutError:
                        reason = "stands still"
                if reason == "complete":
                    return
            if bought.session_id not in {each for each, _ in self._active()}:
                return
            await asyncio.sleep(plan.rests)
        world.fail(f"{process.name} does not serve the active {bought.session_id[-6:]}: {reason}")

    async def _end_all(self) -> None:
        rows = self.database.rows(
            "SELECT id, user_id FROM bandwidth_sessions WHERE status = 'active' ORDER BY id"
        )
        loop = asyncio.get_running_loop()
        await _all([loop.create_task(self._end(*row, number)) for number, row in enumerate(rows)])

    async def _end(self, session_id: str, user_id: str, number: int) -> None:
        with_market = [each for each in self.processes if each.has_services]
        life = with_market[number % len(with_market)].serving
        if life is None:
            self.world.fail("a daemon does not serve though nothing is broken")
            return

        async def end(market: Any) -> None:
            began = self.world.now
            await market.bandwidth.end(user_id, session_id)
            self.books.was_ended(session_id, began)

        try:
            await self.network.request("last end", end, life)
        except RequestError as error:
            self.world.fail(f"the end of {session_id[-6:]} fails, and nothing is broken: {error}")

    async def _stop(self, process: Process) -> None:
        world, life = self.world, process.life
        process.is_wanted = False
        if life is None or not life.is_serving:
            world.fail(f"{process.name} does not serve though nothing is broken")
            return
        began = world.now
        process.stop()
        while process.life is life and world.now < began + 4 * STOP_SECONDS:
            await asyncio.sleep(0.05)
        self.exit_books.look_at_stopped(life)
        if life.stopped_in > STOP_SECONDS or process.life is life:
            world.fail(f"{process.name} takes {world.now - began:.1f} s to stop")


async def _all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for tasks; `asyncio.gather` takes more callbacks in some versions of Python."""
    for task in tasks:
        await task


# --- the surroundings ----------------------------------------------------------------------------


@contextmanager
def _drawn_secrets(world: World) -> Iterator[None]:
    """Draw secrets from the seed, order sessions by name, and prevent threads."""
    draw: Random = world.draw("secrets")
    random.seed(world.seed)

    def token_hex(size: int) -> str:
        return draw.randbytes(size).hex()

    replaced = {
        "token_bytes": draw.randbytes,
        "token_hex": token_hex,
        "token_urlsafe": token_hex,
        "choice": lambda values: values[int(draw.random() * len(values))],
        "randbelow": lambda most: int(draw.random() * most),
        "randbits": draw.getrandbits,
        "SystemRandom": lambda: draw,
    }
    before = {name: getattr(secrets, name) for name in replaced}
    hash_before, control_before = LiveSession.__hash__, Control.__hash__
    reader_before, readers = Reader.__hash__, count()
    submit = FileThreads.submit
    signal = proxyd.wiring.tasks.signal
    for name, call in replaced.items():
        setattr(secrets, name, call)
    FileThreads.submit = _submit  # type: ignore[method-assign]
    LiveSession.__hash__ = lambda each: hash(each.id)  # type: ignore[method-assign]
    Control.__hash__ = lambda each: hash((each.address, each.began))  # type: ignore[method-assign]
    Reader.__hash__ = lambda each: each.__dict__.setdefault("number", next(readers))  # type: ignore[method-assign]
    canaries.SystemRandom = lambda: world.draw("canaries", world.now)  # type: ignore[assignment,misc]
    proxyd.wiring.tasks.signal = SimpleNamespace(  # type: ignore[assignment]
        raise_signal=lambda _: world.fail("a daemon stops itself"), SIGTERM=15
    )
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(secrets, name, call)
        FileThreads.submit = submit  # type: ignore[method-assign]
        LiveSession.__hash__ = hash_before  # type: ignore[method-assign]
        Control.__hash__ = control_before  # type: ignore[method-assign]
        Reader.__hash__ = reader_before  # type: ignore[method-assign]
        canaries.SystemRandom = SystemRandom  # type: ignore[misc]
        proxyd.wiring.tasks.signal = signal  # type: ignore[assignment]


def _closed_generators(world: World) -> AbstractContextManager[None]:
    """Fail if an asynchronous generator is dropped before its end: its owner has not closed it.

    Generators of buried tasks stay as they are: Python 3.11 cannot close one that is running.
    """

    def dropped(name: str) -> None:
        if world.current is not None:
            world.fail(f"{world.current.name} drops {name} before its end")

    return watched(dropped)


def _submit(_: FileThreads, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a call about files immediately, like other calls for threads."""
    return asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))


class _Log(logging.Handler):
    """Log handler that adds the product's log to the lines of the run."""

    def __init__(self, world: World, folder: Folder | None) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._root = "" if folder is None else str(folder.root)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._root:  # it is another one in each run
            text = text.replace(self._root, "folder")
        current = self._world.current
        name = "" if current is None else current.name
        self._world.say(f"{name} {record.levelname.lower()} {record.name}: {text}")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, MarketError) and NOT_EMPTY in text:
            return
        if self._world.is_over:  # the log of tasks that were buried
            return
        if record.exc_info or any(each in text for each in NEVER):
            self._world.fail(f"{name} logged: {text} {error!r}", error)


@contextmanager
def _logged(world: World, folder: Folder | None) -> Iterator[None]:
    root, handler = logging.getLogger(), _Log(world, folder)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
