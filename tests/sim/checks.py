"""Rules that must hold: at every byte, after every commit, and at the end of a run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from market.bandwidth.leases import RECALL_SECONDS
from market.bandwidth.notices import Notice, Topic
from market.money.audit import audit_ledger
from market.money.money import earned
from tests.sim.faults import Weather
from tests.sim.loop import World
from tests.sim.relays import Closing, Relay
from tests.sim.store import EPOCH, Commit, Database

if TYPE_CHECKING:
    from tests.sim.acts import Acts
    from tests.sim.halts import HaltBooks
    from tests.sim.process import Life

# Notices take a few milliseconds, and a thousandth of a second for each of a few callbacks.
NOTICED_SECONDS = 0.1
# Longest end of a session without a fault: the cut, one recall, one settlement.
END_HEALTHY_SECONDS = 1.0
# A request that ends a session waits this long for the database beside the recall, while faults
# hold. So checks begin that long after the last fault.
AFTERMATH_SECONDS = 5.0
# A session that another node ends is refused for this time.
REFUSED_SECONDS = 6.0
# The lock of a dead node that swept is free, is taken, and the nodes are looked at.
REAPED_SECONDS = 6.0
# A session without a connection returns its bytes after three, with the next report.
IDLE_SECONDS = 4.0

_OPEN = """
    SELECT id, session_id, granted_bytes, used_bytes, COALESCE(node_id, '') FROM bandwidth_leases
    WHERE closed_at IS NULL
"""
_EXITS = """
    SELECT u.lease_id, u.device_id, u.used_bytes FROM exit_usage AS u
    JOIN bandwidth_leases AS l ON l.id = u.lease_id WHERE l.closed_at IS NULL
"""
_NODES = "SELECT id, renewals FROM nodes"
# Devices with more jobs than one may have that has not completed ten (`market.accounts.bounds`).
_FULL = """
    SELECT j.device_id, COUNT(*) FROM jobs AS j WHERE j.status = 'running'
    GROUP BY j.device_id HAVING COUNT(*) > 4 AND (
        SELECT COUNT(*) FROM job_attempts AS a
        WHERE a.device_id = j.device_id AND a.outcome = 'completed'
    ) < 10
"""
_OVER = "SELECT id FROM bandwidth_sessions WHERE status <> 'active'"
_IS_ACTIVE = "SELECT 1 FROM bandwidth_sessions WHERE id = :id AND status = 'active'"
_ABOUT_NODES = frozenset(("leave", "reap", "recover", "register", "renew"))
# Units that no process writes after it has left the others.
_ONLY_BEFORE_LEAVING = frozenset(("exchange", "open_lease", "register", "release"))
_LEASE = "SELECT granted_bytes, used_bytes FROM bandwidth_leases WHERE id = :id"
_TAKING_BACK = frozenset(("reap", "recover", "leave"))
_ABOUT_LEASES = frozenset(
    (
        "exchange",
        "forgo",
        "forgo_own",
        "leave",
        "open_lease",
        "reap",
        "recover",
        "release",
        "settle",
        "settle_or_recall",
    )
)
_SETTLING = frozenset(("settle", "settle_or_recall"))


class Lease:
    """A lease: the bytes that were handed out under it, and how it ended."""

    __slots__ = (
        "by_exit",
        "closed_at",
        "closed_by",
        "excuses",
        "handed",
        "id",
        "node_id",
        "session_id",
    )

    def __init__(self, lease_id: str, session_id: str, node_id: str) -> None:
        self.id = lease_id
        self.session_id = session_id
        self.node_id = node_id
        self.handed = 0
        self.by_exit: dict[str, int] = {}
        self.closed_at: float | None = None
        self.closed_by: Commit | None = None
        self.excuses: list[str] = []


class Books:
    """Counts the bytes that leave the machines, and compares them with the database.

    Args:
        world: the clock, the lines and the failures of the run.
        timeout_seconds: the timeout of nodes.
    """

    def __init__(self, world: World, timeout_seconds: float) -> None:
        self.world = world
        self.timeout = timeout_seconds
        self.weather: Weather
        self.database: Database
        self.leases: dict[str, Lease] = {}
        self.over_at: dict[str, float] = {}
        self.knows_ends = False
        self.slowest_end = 0.0
        # Starts the senders of daemons; None in a run without webhooks and letters.
        self.senders: Acts | None = None
        # The sessions that the staff halts; None in a run without halts.
        self.halts: HaltBooks | None = None
        self._open: dict[str, Lease] = {}
        # When the row of each node was last changed.
        self._nodes: dict[str, tuple[int, float]] = {}
        self._left: set[str] = set()
        # By the run of a process and session: when it learned that another one ends the session.
        self._recalled: dict[tuple[str, str], float] = {}
        # By the run of a process: the identifiers that its node has had.
        self._own_ids: dict[str, set[str]] = {}
        self._ending: set[tuple[str, str]] = set()
        # By the run of a process and session: when it last had a client, or a connection.
        self._last_use: dict[tuple[str, str], float] = {}
        self._addresses: dict[str, frozenset[str]] = {}
        self._relays: dict[Relay, None] = {}
        self._closings: dict[Closing, None] = {}

    # --- calls of relays -------------------------------------------------------------------------

    def begins(self, relay: Relay) -> None:
        """Record the start of a relay; fail if its session is over or another process ends it."""
        self._relays[relay] = None
        self._lease(relay.lease_id)
        name, session_id, now = relay.life.name, relay.session.id, self.world.now
        # One that was declared dead while it slept has not noticed it yet: it gets no byte.
        if self.halts is not None and self._lease(relay.lease_id).closed_by is None:
            self.halts.moves(name, session_id, "admits a client")
        recalled_at = self._recalled.get((name, session_id))
        if self.halts is not None and self.halts.excuses(session_id, REFUSED_SECONDS):
            recalled_at = None  # one that may go on is refused no longer, for no reason
        if recalled_at is not None and now - recalled_at < REFUSED_SECONDS - 0.01:
            self.world.fail(f"{name} admits a client of {session_id[-6:]}, which another one ends")
        if self._is_long_over(session_id):
            self.world.fail(f"{name} admits a client of {session_id[-6:]}, which is over")

    def ends(self, relay: Relay) -> None:
        """Record the end of a relay."""
        self._relays.pop(relay, None)
        self._last_use[relay.life.name, relay.session.id] = self.world.now
        if relay.life.loop.is_dead:
            self._lease(relay.lease_id).excuses.append("killed")

    def closes(self, closing: Closing) -> None:
        """Record that the closing of a socket begins."""
        self._closings[closing] = None

    def closed(self, closing: Closing) -> None:
        """Record that a socket is closed."""
        self._closings.pop(closing, None)
        self._last_use[closing.place] = self.world.now

    def cuts(self, relay: Relay) -> None:
        """Fail if a relay is cut although its session is active and its lease is open."""
        life, session_id = relay.life, relay.session.id
        key, by = (life.name, session_id), self._lease(relay.lease_id).closed_by
        if life.is_stopping or key in self._ending or key in self._recalled:
            return
        if self.halts is not None and self.halts.excuses(session_id, REFUSED_SECONDS):
            return
        if relay.via is not None:  # its exit may have been let go of, or needs the place
            return
        if by is not None and (by.name != "release" or by.process != life.name):
            return
        if self.database.rows(_IS_ACTIVE, id=session_id):
            self.world.fail(f"{life.name} cuts a client of {session_id[-6:]} without a reason")

    def takes(self, relay: Relay) -> None:
        """Fail if a relay takes bytes under a lease that was closed."""
        lease = self._lease(relay.lease_id)
        if self.halts is not None:
            self.halts.moves(relay.life.name, relay.session.id, "hands out a byte")
        by = lease.closed_by
        if by is None:
            return
        if by.name in _TAKING_BACK:
            self.world.fail(
                f"{relay.life.name} hands out bytes of {lease.session_id[-6:]}"
                f" under a lease that {by.process} took back by {by.name}"
            )
            return
        since = lease.closed_at or 0.0
        if self.world.now - since > NOTICED_SECONDS and self.is_healthy(since):
            self.world.fail(
                f"{relay.life.name} hands out bytes of {lease.session_id[-6:]} under a lease that"
                f" {by.process} closed by {by.name} {self.world.now - since:.2f} s ago"
            )

    def hands(self, by: Relay | Closing, size: int) -> None:
        """Count the bytes that the kernel got under a lease, or lost (`size` below zero)."""
        lease = self._lease(by.lease_id)
        lease.handed += size
        if by.device_id:
            lease.by_exit[by.device_id] = lease.by_exit.get(by.device_id, 0) + size
        is_late = size > 0 and lease.closed_at is not None and "late" not in lease.excuses
        if is_late and not self.is_healthy(lease.closed_at or 0.0):
            lease.excuses.append("late")

    def lists(self, session_id: str, addresses: list[str]) -> None:
        """Record the addresses that a buyer has listed for a session."""
        self._addresses[session_id] = frozenset(addresses)

    def uses(self, name: str, session_id: str) -> None:
        """Record that a process has a client of a session, which may find no exit."""
        self._last_use[name, session_id] = self.world.now

    def admits(self, session_id: str, address: str) -> None:
        """Fail if a client was admitted by an address that the buyer has not listed."""
        if address not in self._addresses.get(session_id, (address,)):
            self.world.fail(f"{address} opens {session_id[-6:]}, which does not list it")

    def lives(self, session_id: str, seconds: float) -> None:
        """Set the expiry of a session that was just bought."""
        self.database.connection.execute(
            "UPDATE bandwidth_sessions SET expires_at = :at WHERE id = :id",
            {"at": EPOCH + int(self.world.now + seconds), "id": session_id},
        )

    def was_ended(self, session_id: str, began: float) -> None:
        """Record that a request has ended a session; fail if that took long without a fault."""
        took = self.world.now - began
        self.slowest_end = max(self.slowest_end, took)
        if took > END_HEALTHY_SECONDS and self.is_healthy(began):
            self.world.fail(
                f"the end of {session_id[-6:]} took {took:.2f} s, and nothing is broken"
            )

    def is_healthy(self, since: float) -> bool:
        """Return whether no fault held since a time, nor for long enough before it."""
        calm = RECALL_SECONDS + 2 * self.timeout + AFTERMATH_SECONDS
        return not self.weather.is_broken(since - calm, self.world.now)

    def _lease(self, lease_id: str) -> Lease:
        lease = self.leases.get(lease_id)
        if lease is None:
            lease = self.leases[lease_id] = Lease(lease_id, "", "")
        return lease

    # --- ends ------------------------------------------------------------------------------------

    def hears(self, name: str, node_id: str, text: str) -> None:
        """Record a notice of another process that it ends a session."""
        own = self._own_ids.setdefault(name, set())
        own.add(node_id)  # one that was declared dead gets its last notices under the next one
        notice = Notice.read(text)
        if notice is not None and notice.topic is Topic.CUT and notice.node_id not in own:
            self._recalled[name, notice.session_id] = self.world.now

    def begins_end(self, name: str, session_id: str) -> None:
        """Record that the marketplace of a process begins to end a session."""
        self._ending.add((name, session_id))

    def takes_back(self, name: str, session_id: str) -> None:
        """Record that the end of a session failed, so that the session continues."""
        self._ending.discard((name, session_id))
        self._recalled.pop((name, session_id), None)

    def look_at_over(self, lives: "list[Life]") -> None:
        """Fail if a session that is over has a connection left."""
        for life in lives:
            for relay in life.relays:
                if self.world.now - self.over_at.get(relay.session.id, self.world.now) > 1.0:
                    self.world.fail(
                        f"{life.name} has a connection of {relay.session.id[-6:]}, which is over"
                    )

    def look_at_idle(self, lives: "list[Life]") -> None:
        """Fail if a process keeps bytes of a session without a connection."""
        for life in lives:
            sessions = () if life.core is None else life.core.meter.sessions
            for session in sessions:
                used_at = self._last_use.get((life.name, session.id), life.began_at)
                is_idle = not session.connections and self.world.now - used_at > IDLE_SECONDS
                if session.lease_slice and is_idle and session.is_leased and session.available:
                    self.world.fail(
                        f"{life.name} keeps {session.available} bytes of {session.id[-6:]},"
                        " and nobody uses them"
                    )

    def _is_long_over(self, session_id: str) -> bool:
        """Return whether every process should know that a session is over."""
        over_at = self.over_at.get(session_id)
        if over_at is None or self.world.now - over_at < NOTICED_SECONDS:
            return False
        return self.is_healthy(over_at)

    # --- after each commit -----------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Compare the database with the counted bytes after a commit."""
        if commit.name in _ABOUT_NODES:
            self._count_nodes(commit)
        self._look_at_left(commit)
        self._count_jobs(commit)
        if commit.name in _SETTLING:
            for (session_id,) in self.database.rows(_OVER):
                self.over_at.setdefault(session_id, self.world.now)
        if commit.name not in _ABOUT_LEASES:
            return
        now_open: dict[str, Lease] = {}
        queued = self._queued()
        for lease_id, session_id, granted, used, node_id in self.database.rows(_OPEN):
            lease = self._lease(lease_id)
            lease.session_id, lease.node_id = session_id, node_id
            now_open[lease_id] = lease
            self._compare(lease, granted, used, queued)
        for lease_id, device_id, used in self.database.rows(_EXITS):
            left = now_open[lease_id].by_exit.get(device_id, 0)
            left -= queued.get((lease_id, device_id), 0)
            if used > left:
                self.world.fail(f"an exit is paid for more than it carried: {used} > {left}")
        for lease_id, lease in self._open.items():
            if lease_id not in now_open:
                self._closed_by(commit, lease, queued)
        self._open = now_open
        self._look_at_relays()

    def _count_jobs(self, commit: Commit) -> None:
        """A device gets no more jobs than it may have."""
        for device_id, count in self.database.rows(_FULL) if commit.name == "claim" else ():
            self.world.fail(f"{device_id} has {count} jobs, which is more than it may")

    def _look_at_left(self, commit: Commit) -> None:
        """Fail if a process writes about leases after it has left the other nodes."""
        if commit.process in self._left and commit.name in _ONLY_BEFORE_LEAVING:
            self.world.fail(f"{commit.process} writes {commit.name} after it has left")
        if commit.name == "leave":
            self._left.add(commit.process)
        if commit.name == "register":  # a node that was declared dead has forgotten all
            for key in [each for each in self._recalled if each[0] == commit.process]:
                del self._recalled[key]

    def _closed_by(self, commit: Commit, lease: Lease, queued: dict[tuple[str, str], int]) -> None:
        """Record the commit that closed a lease, and compare its bytes."""
        lease.closed_by, lease.closed_at = commit, self.world.now
        ((granted, used),) = self.database.rows(_LEASE, id=lease.id)
        self._compare(lease, granted, used, queued)
        if commit.name in _TAKING_BACK and lease.handed > used:
            lease.excuses.append(commit.name)

    def _look_at_relays(self) -> None:
        """Fail if a process does not know the session of one of its connections."""
        for relay in self._relays:
            core = relay.life.core
            if core is not None and core.meter.sessions.get(relay.session.id) is not relay.session:
                self.world.fail(
                    f"{relay.life.name} has a connection of {relay.session.id[-6:]}, which it"
                    " does not know"
                )
            if self._is_long_over(relay.session.id):
                self.world.fail(
                    f"{relay.life.name} has a connection of {relay.session.id[-6:]}, which is over"
                )

    def _count_nodes(self, commit: Commit) -> None:
        """Fail if a node is declared dead without a fault, or before the timeout of its silence."""
        before, self._nodes = self._nodes, {}
        for node_id, renewals in self.database.rows(_NODES):
            last = before.get(node_id)
            is_same = last is not None and last[0] == renewals
            self._nodes[node_id] = last if is_same and last else (renewals, self.world.now)
        dead = before.keys() - self._nodes.keys()
        if commit.name != "reap" or not dead:
            return
        if self.is_healthy(self.world.now):
            self.world.fail(f"{commit.process} declares a node dead, and nothing is broken")
        for node_id in dead:
            silent = self.world.now - before[node_id][1]
            if silent > self.timeout + REAPED_SECONDS and self.weather.has_only_died(
                self.world.now - silent - self.timeout, self.world.now
            ):
                self.world.fail(f"{commit.process} declares a node dead only after {silent:.2f} s")
            if silent < self.timeout and not self.knows_ends:
                self.world.fail(f"{commit.process} declares a node dead after {silent:.2f} s")

    def _queued(self) -> dict[tuple[str, str], int]:
        """Return the bytes in queues, by lease and exit; the exit "" has the sum of a lease."""
        queued: dict[tuple[str, str], int] = {}
        for each in (*self._relays, *self._closings):
            if size := each.queue.size():
                for key in {(each.lease_id, ""), (each.lease_id, each.device_id)}:
                    queued[key] = queued.get(key, 0) + size
        return queued

    def _compare(
        self, lease: Lease, granted: int, used: int, queued: dict[tuple[str, str], int]
    ) -> None:
        left = lease.handed - queued.get((lease.id, ""), 0)
        if used > left:
            self.world.fail(
                f"billed more than delivered: {lease.session_id[-6:]} lease {lease.id[-6:]}"
                f" used {used} > {left}"
            )
        if lease.handed > granted:
            self.world.fail(
                f"handed out more than granted: {lease.session_id[-6:]} lease {lease.id[-6:]}"
                f" {lease.handed} > {granted}"
            )

    # --- at the end ------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """Compare all bytes and money, after all daemons have stopped in order."""
        rows = self.database.rows
        fail = self.world.fail
        if left := rows("SELECT id FROM nodes"):
            fail(f"nodes left behind after orderly stops: {len(left)}")
        if open_leases := rows(_OPEN):
            fail(f"leases left open: {open_leases}")
        for session_id, status, used, price, captured in rows(
            "SELECT s.id, s.status, s.bytes_used, s.price_per_gb, h.captured"
            " FROM bandwidth_sessions s LEFT JOIN holds h ON h.id = 'bandwidth:' || s.id"
        ):
            if status == "active":
                fail(f"{session_id[-6:]} is active after its end")
            expected = max(earned(used, price), min(used, 1))
            # Bytes of a barred exit are free; the audit computes their price.
            is_exact = session_id not in self._with_barred()
            if captured != expected if is_exact else not 0 <= captured <= expected:
                fail(f"{session_id[-6:]} paid {captured} for {used} bytes, expected {expected}")
        self._compare_with_delivered()
        report = run_now(audit_ledger, self.database)
        for check in report.checks:
            for difference in check.differences:
                fail(f"audit: {check.promise}: {difference}")

    def _with_barred(self) -> set[str]:
        """Return the sessions that used a barred exit."""
        return {
            each
            for (each,) in self.database.rows(
                "SELECT u.session_id FROM exit_usage AS u JOIN exits AS e"
                " ON e.device_id = u.device_id WHERE e.barred_at IS NOT NULL"
            )
        }

    def _compare_with_delivered(self) -> None:
        for lease in self.leases.values():
            rows = self.database.rows(_LEASE, id=lease.id)
            used = rows[0][1] if rows else 0
            self._compare_exits(lease)
            if lease.handed > used and not lease.excuses and not self._is_excused(lease):
                by = lease.closed_by
                closer = "" if by is None else f"{by.process} {by.name}"
                self.world.fail(
                    f"delivered and not billed: {lease.session_id[-6:]} lease {lease.id[-6:]}"
                    f" {lease.handed} > {used}, closed by {closer}"
                )
            if lease.handed > used:
                self.world.say(
                    f"free    {lease.id[-6:]} {lease.handed - used} bytes: {lease.excuses}"
                )

    def _compare_exits(self, lease: Lease) -> None:
        """Fail if the carried bytes of an exit differ from the bytes that count for its owner."""
        rows = self.database.rows(
            "SELECT device_id, used_bytes FROM exit_usage WHERE lease_id = :id", id=lease.id
        )
        paid = dict(rows)
        for device_id, size in lease.by_exit.items():
            used = paid.get(device_id, 0)
            if used > size or (used < size and not lease.excuses and not self._is_excused(lease)):
                self.world.fail(
                    f"{device_id} carried {size} under lease {lease.id[-6:]}, and {used} count"
                )

    def _is_excused(self, lease: Lease) -> bool:
        """Return whether a fault explains that the session was settled without the node's last
        report.
        """
        by = lease.closed_by
        if by is None or lease.closed_at is None or by.name not in _SETTLING:
            return False
        return not self.is_healthy(lease.closed_at)


class _ReadOnly:
    """A `Store` whose reads take no time, for checks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, unit: Any, *args: Any, **kwargs: Any) -> Any:
        return self._database.read(lambda tx: unit(tx, *args, **kwargs))


def run_now(work: Callable[[Any], Any], database: Database) -> Any:
    """Return the result of a coroutine that only reads the database, without an event loop."""
    coroutine = work(_ReadOnly(database))
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a check waits")
