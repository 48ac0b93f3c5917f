"""Rules of exits that must hold when one is chosen, when all is calm, and at the end of a run."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.checks import Books
from tests.sim.exit_plans import device_id_of, owner_of
from tests.sim.exit_ports import country_of
from tests.sim.exits import ExitAgent, ExitOwner
from tests.sim.labels import LabelBooks, label_of
from tests.sim.loop import World
from tests.sim.process import Life
from tests.sim.relays import Relay

if TYPE_CHECKING:
    from tests.sim.store import Database

# The next look of the marketplace, a link between nodes, and an agent's next attempt. A second
# agent of the same device takes turns with the first one.
ATTACHED_SECONDS = 20.0
# A daemon looks every five seconds for decisions of others.
LOOK_SECONDS = 7.0
# Commits after which an exit may be barred, or have other terms.
EXIT_COMMITS = frozenset(("_bar", "bar", "_consent", "_of_owner"))
# Kinds of agents that stay attached and carry, once they misbehave no more.
_GOOD = ("", "refuses", "drops", "mute")


class _Terms(NamedTuple):
    """The least price of an owner in micro-USD per GB, and the ports, from a moment on."""

    since: float
    price: int
    ports: str


class ExitBooks:
    """Watches the exits of a run.

    Args:
        world: the time.
        books: know the faults.
        database: has the permissions.
    """

    def __init__(self, world: World, books: Books, database: "Database") -> None:
        self.world = world
        self._books = books
        self._database = database
        self._barred_at: dict[str, float] = {}
        # By exit, the newest last.
        self._terms: dict[str, list[_Terms]] = {}
        self.labels = LabelBooks(world, books.is_healthy)

    def committed(self) -> None:
        """Note when exits were barred, and got other terms."""
        for device_id, price, ports, barred_at in self._database.rows(
            "SELECT device_id, min_price_per_gb, ports, barred_at FROM exits"
        ):
            terms = self._terms.setdefault(device_id, [])
            if not terms or terms[-1][1:] != (price, ports):
                terms.append(_Terms(self.world.now, price, ports))
            if barred_at is not None:
                self._barred_at.setdefault(device_id, self.world.now)

    def chooses(self, relay: Relay, wish: Any) -> None:
        """A daemon has chosen an exit for a connection."""
        fail, session, device_id = self.world.fail, relay.session, relay.device_id
        self.world.say(f"exits   {relay.life.name} chooses {device_id} for {wish.wants.session}")
        ((owner,),) = self._database.rows(
            "SELECT user_id FROM exits WHERE device_id = :id", id=device_id
        )
        what = f"{relay.life.name} leaves through {device_id}"
        if owner == session.user_id:
            fail(f"{what}, which is the buyer's own")
        terms = self._terms_in_force(device_id)
        price = min(each.price for each in terms)
        if price > session.price_per_gb:
            fail(f"{what}, which wants {price}, for {session.price_per_gb}")
        if not any(str(wish.port) in each.ports.split(",") for each in terms):
            fail(f"{what} to port {wish.port}, which its owner does not allow")
        barred_at = self._barred_at.get(device_id)
        if barred_at is not None and self._is_known(barred_at):
            fail(f"{what}, which was barred {self.world.now - barred_at:.2f} s ago")
        if wish.wants.strict:
            self._look_at_label(relay, wish.wants)

    def _terms_in_force(self, device_id: str) -> list[_Terms]:
        """Return the terms of an exit, and those of before that a node may still believe in."""
        terms = self._terms[device_id]
        before = [old for old, new in pairwise(terms) if not self._is_known(new.since)]
        return [*before, terms[-1]]

    def _is_known(self, decided_at: float) -> bool:
        """Return whether every node has seen a decision in the account."""
        is_late = self.world.now - decided_at > LOOK_SECONDS
        return is_late and self._books.is_healthy(decided_at)

    def _look_at_label(self, relay: Relay, wants: Any) -> None:
        port, session_id = relay.life.port, relay.session.id
        assert port is not None
        label, binding = label_of(wants, session_id), port.directory.binding(wants, session_id)
        now = relay.life.loop.time()
        self.labels.uses(relay.life.name, label, relay.device_id, binding, now)

    def look_at_calm(
        self, lives: Sequence[Life], agents: Sequence[ExitAgent], owners: Sequence[ExitOwner]
    ) -> None:
        """Each device that may be an exit is attached once, and each node knows where."""
        fail, now = self.world.fail, self.world.now
        homes: dict[str, list[str]] = {}
        for life in lives:
            assert life.port is not None
            for device_id in life.port.port.listener.roster.by_device:
                homes.setdefault(device_id, []).append(life.name)
        for device_id, names in homes.items():
            if len(names) > 1 and self._is_settled(device_id, lives):
                fail(f"{device_id} is attached to {names}")
        for owner in owners:
            device_id = device_id_of(owner.plan.number)
            is_ready = owner.agreed_at is not None and now - owner.agreed_at > ATTACHED_SECONDS
            is_good = owner.plan.kind in _GOOD and not owner.plan.twin
            if not is_ready or not is_good or device_id in self._barred_at:
                continue
            if device_id not in homes:
                said = [each.refusal for each in agents if each.device_id == device_id]
                if said != ["too_many_on_network"]:
                    fail(f"{device_id} is not attached, though its owner agrees: {said}")
        self._look_at_directories(lives, agents, homes)
        self._look_at_places(lives)

    def _look_at_places(self, lives: Sequence[Life]) -> None:
        """An exit through which no connection goes has all of its places."""
        for life in lives:
            assert life.port is not None
            roster = life.port.port.listener.roster
            if len(roster.by_number) != len(roster.by_device):
                self.world.fail(f"{life.name} has a device attached twice")
            for attached in roster.by_device.values():
                load = attached.load
                # The exit may have lost the word that a connection is over: looked at when asked.
                load.places.has("nobody", 1, 0, load.now(), datagrams=False)
                if not load.relays and (load.places.taken or load.connections_elsewhere):
                    self.world.fail(
                        f"{attached.device_id} at {life.name} carries nothing, and counts"
                        f" {load.places.taken} connections, {load.connections_elsewhere} elsewhere"
                    )

    def is_suited(
        self,
        agent: ExitAgent,
        agents: Sequence[ExitAgent],
        lives: Sequence[Life],
        buyer: Any,
        wish: Any,
    ) -> bool:
        """Return whether an exit is certainly good for a connection of a buyer."""
        plan, limits = agent.plan, agent.plan.limits
        lines = {each.plan.addresses[0] for each in agents if each is not agent}
        country = country_of(plan.addresses[0])
        is_good = not (plan.kind or plan.twin or plan.leaves or plan.addresses[1:] or plan.breaks)
        is_offered = (
            owner_of(plan.number) != buyer.user_id
            and limits.min_price_per_gb <= buyer.plan.price
            and wish.port in limits.ports
            and limits.bytes_per_day >= 10**12
            and (not wish.wants.countries or country in wish.wants.countries)
        )
        is_alone = plan.addresses[0] not in lines and agent.device_id not in self._barred_at
        if not (is_good and is_offered and is_alone and agent.is_attached):
            return False
        for life in lives:  # it may rest after failures, or be new
            assert life.port is not None
            member = life.port.directory._files.find(agent.device_id)
            if member is None or member.standing.rest.until > life.loop.time():
                return False
            if (buyer.user_id, agent.device_id) in life.port.directory._faults.grudges:
                return False
            if wish.port != 443 and not getattr(member.entry, "is_proven", True):
                return False
        return True

    @staticmethod
    def was_last(agent: ExitAgent, life: Life, session_id: str, wish: Any) -> bool:
        """Return whether a wish rotates, and the session's last connection at a node went there.

        A session that rotates never leaves through one exit twice in a row, also where that is the
        only one.
        """
        assert life.port is not None
        last = life.port.directory._picks.last_of(session_id)
        return bool(wish.wants.rotate) and last == agent.device_id

    def _look_at_directories(
        self, lives: Sequence[Life], agents: Sequence[ExitAgent], homes: dict[str, list[str]]
    ) -> None:
        """The nodes choose among the same exits."""
        known: dict[str, list[str]] = {}
        for agent in agents:
            if agent.plan.twin:
                continue
            for life in lives:
                assert life.port is not None
                entry = life.port.directory.get(agent.device_id)
                if entry is not None:
                    known.setdefault(agent.device_id, []).append(life.name)
        for device_id, names in known.items():
            if device_id not in homes:
                self.world.fail(f"{names} know of {device_id}, which is not attached")
            if len(names) != len(lives):
                self.world.fail(f"of {len(lives)} nodes only {names} know of {device_id}")

    @staticmethod
    def _is_settled(device_id: str, lives: Sequence[Life]) -> bool:
        """Return whether each of its attachments is older than a message between nodes."""
        found = [
            (life, attached)
            for life in lives
            if life.port is not None
            and (attached := life.port.port.listener.roster.by_device.get(device_id)) is not None
        ]
        return all(
            life.loop.time() - life.port.port.listener.roster.control_of(attached).began > 1.0
            for life, attached in found
            if life.port is not None
        )

    def look_at_stopped(self, life: Life) -> None:
        """A daemon that has stopped in order has let go of everything."""
        if life.port is None:
            return
        way, listener = life.port.way, life.port.port.listener
        if way.budget.wanted or way.exits.counters.parked:
            self.world.fail(
                f"{life.name} has stopped, and counts {way.budget.wanted} connections as wanted"
                f" and {way.exits.counters.parked} as waiting"
            )
        if len(listener) or listener.tasks or len(life.port.directory):
            self.world.fail(f"{life.name} has stopped, and has exits or their tasks")

    def at_the_end(self, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
        """Each byte through an exit has paid its owner once, unless the exit is barred."""
        for session_id, device_id, used, earned, paid in rows(
            "SELECT u.session_id, u.device_id, SUM(u.used_bytes), SUM(u.earned),"
            " COALESCE((SELECT SUM(e.amount) FROM exit_earnings AS e"
            "  WHERE e.session_id = u.session_id AND e.device_id = u.device_id"
            "  AND e.reversed_at IS NULL), 0)"
            " FROM exit_usage AS u GROUP BY u.session_id, u.device_id"
        ):
            what = f"{device_id} carried {used} bytes of {session_id[-6:]}"
            if device_id in self._barred_at:
                if paid > earned:
                    self.world.fail(f"{what}, is barred, and was paid {paid} of {earned}")
            elif paid != earned:
                self.world.fail(f"{what}, earned {earned}, and was posted {paid}")
