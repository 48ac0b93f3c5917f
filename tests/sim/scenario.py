"""Scenario of a seed: the daemons, the plans of buyers and clients, and the faults.

Each part has its own stream of draws, so leaving out one part does not change the others.
"""

from dataclasses import dataclass
from random import Random

from tests.sim.acts import NO_ACTS, SUBJECTS, ActsPlan, acts_of
from tests.sim.clients import ClientPlan, SessionPlan, StaffPlan
from tests.sim.datagrams import otherwise
from tests.sim.exit_plans import NO_LINKS, Links, by_exits, lent_to, links_of
from tests.sim.faults import MODES, NODES, PROCESSES, SOLO, Fault, Mode, drawn
from tests.sim.focus import REMEMBER_SECONDS, focus_of
from tests.sim.jobs import AgentPlan, JobPlan, plans_of
from tests.sim.loop import World
from tests.sim.relays import EXITS

SESSIONS_MOST = 4
CLIENTS_MOST = 4
PROCESSES_MOST = 4
# Of a session at once: never reached.
CONNECTIONS = 1_000
SKEW_MOST_SECONDS = 0.9
# Of the runs in which devices attach in any case: nodes that borrow exits die.
LENT_SHARE = 0.25
LENT_SECONDS = 10.0
# Kinds of faults that set a clock, by up to a day.
CLOCKS = frozenset(("clock", "dbclock"))
TIMEOUTS = (2.0, 2.0, 3.0, 5.0, 15.0)


@dataclass(frozen=True)
class Scenario:
    """Plan of a run.

    Attributes:
        seed: decides all draws during the run.
        mode: how the daemons share the database.
        nodes: their number.
        timeout: of nodes, in seconds.
        pace: of a session on a node, in bytes per second; 0 for none.
        seconds: how long things go wrong.
        sessions: the plans of buyers.
        clients: the plans of clients.
        staff: the plans of the operator.
        jobs: the plans of buyers of work.
        agents: the plans of devices.
        faults: of the run.
        focus: its subject; "" for a mix of everything.
        acts: the plans of the other actors: deploys, people, webhooks, followers.
        remember: how long memory keeps a session that is over, in seconds.
        links: devices that attach as exits, and wishes of clients.
        connections: the most connections of one session on a process.
        skew: delay of the wall clock of every other node, in seconds.
    """

    seed: int
    mode: Mode
    nodes: int
    timeout: float
    pace: int
    seconds: float
    sessions: tuple[SessionPlan, ...]
    clients: tuple[ClientPlan, ...]
    staff: tuple[StaffPlan, ...]
    jobs: tuple[JobPlan, ...]
    agents: tuple[AgentPlan, ...]
    faults: tuple[Fault, ...]
    focus: str = ""
    remember: float = 60.0
    acts: ActsPlan = NO_ACTS
    links: Links = NO_LINKS
    connections: int = CONNECTIONS
    skew: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.focus and self.focus + ': '}{self.mode.name}, {self.nodes} processes,"
            f" timeout {self.timeout:g} s, {self.seconds:.1f} s,"
            f" {len(self.sessions)} sessions, {len(self.clients)} clients,"
            f" {len(self.jobs)} jobs, {len(self.agents)} agents"
            f"{(self.acts and f', {self.acts}') or ''}"
            + (f", {len(self.links.devices)} exits" if self.links.devices else "")
        )


def scenario_of(
    seed: int,
    *,
    nodes: int | None = None,
    clients: int | None = None,
    sessions: int | None = None,
    seconds: float | None = None,
    only: frozenset[str] | None = None,
    mode: str | None = None,
    focus: str | None = None,
    exits: bool = False,
) -> Scenario:
    """Return the run of a seed.

    Args:
        seed: of all draws.
        nodes: the number of processes; None for a draw, as below.
        clients: the number of clients.
        sessions: the number of sessions.
        seconds: how long things go wrong.
        only: the kinds of faults.
        mode: the name of a mode.
        focus: the subject, also one of `acts.SUBJECTS`; "none" for a mix of everything.
        exits: whether devices attach in any case, in a mix of everything.
    """
    world = World(seed)
    subject, focused = focus_of(world.draw("focus"), "none" if exits else focus)
    if focused is not None:
        kept = focused.sessions[:sessions]
        users = [each for each in focused.clients if each.session < len(kept)]
        faults = [each for each in focused.faults if only is None or each.kind in only]
        return Scenario(
            seed,
            MODES[mode] if mode else focused.mode,
            nodes or focused.nodes,
            focused.timeout,
            0,
            seconds or focused.seconds,
            kept,
            tuple(users[:clients]),
            (),
            (),
            (),
            tuple(faults),
            subject,
            REMEMBER_SECONDS,
        )
    draw, lent = world.draw("scenario"), world.draw("lent")
    is_lent = exits and lent.random() < LENT_SHARE
    chosen = (NODES, NODES, NODES, PROCESSES, SOLO)[int(draw.random() * 5)]
    chosen = NODES if is_lent else chosen
    chosen = MODES[mode] if mode else chosen
    count = 2 + int(draw.random() * (PROCESSES_MOST - 1))
    count = 1 if chosen is SOLO else nodes or count
    timeout = TIMEOUTS[int(draw.random() * len(TIMEOUTS))]
    length = seconds or 3.0 + 25.0 * draw.random() ** 2
    bought = [_session(world.draw("session", each), each, length) for each in range(SESSIONS_MOST)]
    bought = bought[: sessions or 1 + int(draw.random() * SESSIONS_MOST)]
    each_has = 1 + int(draw.random() * CLIENTS_MOST)
    plans = [
        _client(world.draw("client", session, each), session, length)
        for session in range(len(bought))
        for each in range(each_has)
    ]
    # Processes on one machine ask the first one for exits, over a socket.
    links = NO_LINKS
    if chosen is not PROCESSES:
        links = links_of(world.draw("devices"), length, always=exits)
    if links.devices:
        bought, plans = by_exits(world.draw("clients of exits"), bought, plans)
    plans = otherwise(world.draw("kinds"), plans)
    paces = world.draw("pace")
    faults = drawn(world.draw("faults"), chosen, length, timeout)
    if is_lent:
        length = max(length, LENT_SECONDS)
        plans, faults = lent_to(lent, plans, length - 5.0)
    if only is not None:
        faults = [each for each in faults if each.kind in only]
    part = focus if focus in SUBJECTS else None
    jobs, agents = plans_of(world.draw("jobs"), length, part)
    acts = acts_of(world, length, has_agents=bool(agents), subject=part)
    if acts.is_alone:
        bought, plans = [], []
    if acts.halts or (acts.money is not None and acts.money.is_alone):
        jobs, agents, links = (), (), NO_LINKS
    if acts.halts:  # orders last for a day of the wall clock
        faults = [each for each in faults if each.kind not in CLOCKS]
    return Scenario(
        seed,
        chosen,
        count,
        timeout,
        int(_between(paces, 300e3, 10e6)) if paces.random() < 0.15 else 0,
        length,
        tuple(bought),
        tuple(plans[:clients]),
        tuple(_staff(world.draw("staff"), length)),
        jobs,
        agents,
        tuple(faults),
        acts=acts,
        links=links,
        connections=_connections(world.draw("connections")),
        # Only followers of events can notice it.
        skew=_skew(world.draw("skew")) if acts.hooks and chosen is NODES else 0.0,
    )


def _between(draw: Random, least: float, most: float) -> float:
    """Return a number whose logarithm is drawn evenly."""
    return least * (most / least) ** draw.random()


def _skew(draw: Random) -> float:
    return 0.0 if draw.random() < 0.4 else SKEW_MOST_SECONDS * draw.random()


def _connections(draw: Random) -> int:
    return CONNECTIONS if draw.random() < 0.85 else 2 + int(3 * draw.random())


def _session(draw: Random, number: int, seconds: float) -> SessionPlan:
    quota = int(_between(draw, 100e3, 80e6))
    price = int(_between(draw, 100_000, 10_000_000))
    at = 2.0 * draw.random() ** 2
    ends_at = at + 0.5 + seconds * draw.random() if draw.random() < 0.5 else None
    lifetime = 2.0 + seconds * draw.random() if draw.random() < 0.1 else None
    first = number % 2 * 4  # two sessions have the same ones, on different ports
    addresses = (first, first + 1) if draw.random() < 0.4 else ()
    return SessionPlan(quota, price, round(at, 3), ends_at, lifetime, addresses)


def _client(draw: Random, session: int, seconds: float) -> ClientPlan:
    reads = draw.random()
    rate = int(_between(draw, 20e3, 500e3)) if reads < 0.2 else 0 if reads < 0.3 else 100_000_000
    is_bulk = draw.random() < 0.4
    return ClientPlan(
        session=session,
        node=int(draw.random() * 12),
        at=round(seconds * 0.7 * draw.random() ** 2, 3),
        size=int(_between(draw, 1e3, 20e6)),
        chunk=int(_between(draw, 16e3, 256e3)) if is_bulk else int(_between(draw, 100, 30e3)),
        pause=_between(draw, 0.003, 0.03) if is_bulk else _between(draw, 0.01, 0.3),
        rate=rate,
        gives_up=_between(draw, 0.05, 10.0) if draw.random() < 0.3 else None,
        rests=_between(draw, 0.01, 2.0),
        roams=draw.random() < 0.5,
        exit=int(draw.random() * EXITS) if draw.random() < 0.4 else None,
        address=session % 2 * 4 + int(draw.random() * 3),
        by_address=draw.random() < 0.3,
    )


def _staff(draw: Random, seconds: float) -> list[StaffPlan]:
    if draw.random() < 0.5:
        return []
    return [
        StaffPlan(
            "bar" if draw.random() < 0.2 else "advance",
            round(1.0 + seconds * draw.random(), 3),
            int(draw.random() * EXITS),
        )
        for _ in range(1 + int(draw.random() * 6))
    ]
