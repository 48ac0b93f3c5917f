"""Runs with one subject: few kinds of faults, often, at the critical moments.

A mix of all faults seldom has three rare events in a row. Each subject draws sessions, clients and
faults that meet: an end and the clients that it cuts, the last byte and the settlement, a silence
and the fence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.sim.clients import ClientPlan, SessionPlan
from tests.sim.faults import NODES, PROCESSES, SOLO, Fault, Mode

SHARE = 0.4
NEVER_AGAIN = 1_000.0
FAST = 100_000_000
# Longer than an end takes at most: four answers that are lost, and a recall.
REMEMBER_SECONDS = 29.0


@dataclass(frozen=True)
class Focus:
    """The draws of a run with one subject; see `Scenario`."""

    mode: Mode
    nodes: int
    timeout: float
    seconds: float
    sessions: tuple[SessionPlan, ...]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]


class _Draw:
    """Draws numbers, plans and faults.

    Args:
        draw: the random stream.
        seconds: the time in which faults hold.
    """

    def __init__(self, draw: Random, seconds: float) -> None:
        self._draw = draw
        self.seconds = seconds

    def chance(self, share: float) -> bool:
        """Return True with a probability of `share`."""
        return self._draw.random() < share

    def even(self, least: float, most: float) -> float:
        """Return an evenly drawn number, rounded to thousandths."""
        return round(least + (most - least) * self._draw.random(), 3)

    def log(self, least: float, most: float) -> float:
        """Return a number whose logarithm is drawn evenly."""
        return least * (most / least) ** self._draw.random()

    def number(self, least: int, most: int) -> int:
        """Return a whole number from `least` to `most`, inclusive."""
        return least + int(self._draw.random() * (most + 1 - least))

    def session(
        self, quota: tuple[float, float], ends_at: float | None, tries: int | None
    ) -> SessionPlan:
        """Return a session that is bought at the start."""
        at = self.even(0.0, 0.3)
        price = int(self.log(100_000, 10_000_000))
        return SessionPlan(int(self.log(*quota)), price, at, ends_at, None, (), tries)

    def client(self, session: int, at: float, **changes: object) -> ClientPlan:
        """Return a client that reads fast, receives small pieces, and connects again after each
        transfer.
        """
        values: dict[str, object] = {
            "session": session,
            "node": self.number(0, 11),
            "at": at,
            "size": 20_000_000,
            "chunk": int(self.log(1_000, 30_000)),
            "pause": self.log(0.01, 0.1),
            "rate": FAST,
            "gives_up": None,
            "rests": self.log(0.002, 0.1),
            "roams": self.chance(0.8),
        }
        return ClientPlan(**(values | changes))  # type: ignore[arg-type]

    def all_along(self, kind: str, least: float, most: float, until: float = 1.0) -> Fault:
        """Return a fault that lasts from the start to a share of the time."""
        length = self.seconds * until - 0.3
        return Fault(kind, 0.3, round(length, 3), 0, self.even(least, most))

    def some(self, *choices: Fault) -> list[Fault]:
        """Return a drawn part of the faults, at least one."""
        kept = [each for each in choices if self.chance(0.45)]
        return kept or [choices[self.number(0, len(choices) - 1)]]

    def nodes(self, least: int) -> tuple[Mode, int]:
        """Return the mode and the number of several processes."""
        return (NODES if self.chance(0.8) else PROCESSES), self.number(least, 4)


def _ends(draw: _Draw) -> Focus:
    """Draw sessions that buyers end, some in vain, while clients connect again and again."""
    mode, nodes = (SOLO, 1) if draw.chance(0.15) else draw.nodes(2)
    if draw.chance(0.4):
        draw.seconds = 24.0  # until memory forgets a session that is over
    sessions, clients = [], []
    for number in range(4):
        ends_at = draw.even(0.6, 4.0)
        tries = None if draw.chance(0.2) else draw.number(1, 2)
        sessions.append(draw.session((1e6, 80e6), ends_at, tries))
        for each in range(3):
            at = draw.even(0.3, ends_at) if each == 0 else ends_at + draw.even(-0.05, 0.6)
            clients.append(draw.client(number, round(at, 3)))
    until = 5.0 / draw.seconds
    faults = draw.some(
        draw.all_along("cancel", 0.3, 0.9, until),
        draw.all_along("before", 0.05, 0.4, until),
        draw.all_along("after", 0.05, 0.4, until),
        draw.all_along("delay", 0.1, 0.5, until),
    )
    timeout = draw.even(2.0, 3.0)
    return Focus(mode, nodes, timeout, draw.seconds, tuple(sessions), tuple(clients), tuple(faults))


def _spent(draw: _Draw) -> Focus:
    """Draw sessions that are used up, whose clients do not return."""
    mode, nodes = (SOLO, 1) if draw.chance(0.25) else draw.nodes(2)
    sessions, clients = [], []
    for number in range(4):
        ends_at = draw.even(0.8, 5.0) if draw.chance(0.5) else None
        sessions.append(draw.session((50e3, 1e6), ends_at, draw.number(1, 2)))
        for _ in range(draw.number(1, 2)):
            clients.append(
                draw.client(
                    number,
                    draw.even(0.4, 3.0),
                    chunk=int(draw.log(4e3, 256e3)),
                    rate=FAST if draw.chance(0.4) else int(draw.log(20e3, 400e3)),
                    rests=NEVER_AGAIN if draw.chance(0.8) else 0.1,
                    roams=False,
                )
            )
    faults = draw.some(
        draw.all_along("before", 0.05, 0.5),
        draw.all_along("delay", 0.1, 0.5),
        draw.all_along("after", 0.05, 0.4),
        Fault("outage", draw.even(0.5, 4.0), draw.even(0.5, 3.0), 0),
        draw.all_along("settle", 0.3, 0.9),
        *(Fault("spent", 0.5, 0.5, node, draw.number(0, 1)) for node in range(nodes)),
    )
    timeout = draw.even(2.0, 3.0)
    return Focus(mode, nodes, timeout, draw.seconds, tuple(sessions), tuple(clients), tuple(faults))


def _shares(draw: _Draw) -> Focus:
    """Draw sessions that nodes share: some clients hardly read, others read at full speed."""
    mode, nodes = draw.nodes(2)
    sessions, clients = [], []
    for number in range(draw.number(1, 3)):
        ends_at = draw.even(2.0, draw.seconds) if draw.chance(0.3) else None
        sessions.append(draw.session((300e3, 60e6), ends_at, None))
        for each in range(draw.number(1, 3)):
            is_slow = each == 0 and draw.chance(0.7)
            clients.append(
                draw.client(
                    number,
                    draw.even(0.4, 2.0 if is_slow else 4.0),
                    node=each,
                    size=int(draw.log(100e3, 100e6)),
                    chunk=int(draw.log(16e3, 256e3)),
                    pause=draw.log(0.003, 0.03),
                    rate=draw.number(0, 1) * 20_000 if is_slow else FAST,
                    roams=draw.chance(0.2),
                    rests=NEVER_AGAIN if draw.chance(0.5) else 0.1,
                )
            )
    faults = []
    if draw.chance(0.6):
        faults = draw.some(
            draw.all_along("before", 0.1, 0.5),
            draw.all_along("delay", 0.1, 0.5),
            draw.all_along("after", 0.1, 0.4),
        )
    timeout = draw.even(2.0, 3.0)
    return Focus(mode, nodes, timeout, draw.seconds, tuple(sessions), tuple(clients), tuple(faults))


def _silence(draw: _Draw) -> Focus:
    """Draw nodes that are silent for about the timeout, while clients receive bytes."""
    timeout = 5.0 if draw.chance(0.4) else draw.even(2.0, 3.0)
    draw.seconds = round(3 * timeout + 3.0, 3)
    sessions = [draw.session((20e6, 80e6), None, None) for _ in range(2)]
    clients = [
        draw.client(number, draw.even(0.3, 2.0), pause=draw.log(0.02, 0.2), chunk=20_000)
        for number in (0, 0, 0, 1, 1, 1)
    ]
    faults = draw.some(
        draw.all_along("delay", 0.1, 0.7),
        draw.all_along("slow", 0.1, 0.5),
        draw.all_along("before", 0.02, 0.1),
    )
    nodes, late = draw.number(2, 3), timeout < 5.0 and draw.chance(0.4)
    if late:  # a node is declared dead, and anew, while it leases
        length = draw.even(timeout + 1.0, 4.8)
        first = draw.number(0, 11)
        naps = [Fault("nap", 0.25, length, first + each, 1) for each in range(nodes - 1)]
        faults = [*naps, draw.all_along("late", 1, 1)]
    for _ in range(draw.number(0 if late else 2, 2 if late else 4)):
        kind = ("partition", "partition", "freeze", "sleep", "nap", "nap")[draw.number(0, 5)]
        at, length = draw.even(0.3, 2 * timeout), timeout * draw.even(0.8, 1.8)
        faults.append(Fault(kind, at, round(length, 3), draw.number(0, 11)))
    return Focus(
        NODES,
        nodes,
        timeout,
        draw.seconds,
        tuple(sessions),
        tuple(clients),
        tuple(faults),
    )


def _stops(draw: _Draw) -> Focus:
    """Draw processes that stop in order again and again."""
    mode, nodes = draw.nodes(2)
    sessions = [draw.session((5e6, 80e6), None, None) for _ in range(3)]
    clients = [draw.client(number, draw.even(0.3, 2.0)) for number in (0, 0, 1, 1, 2, 2)]
    faults = draw.some(
        draw.all_along("delay", 0.1, 0.6),
        draw.all_along("slow", 0.05, 0.2),
        draw.all_along("after", 0.05, 0.3),
    )
    for _ in range(draw.number(5, 9)):
        at = draw.even(0.6, draw.seconds)
        faults.append(Fault("stop", at, draw.even(0.05, 0.5), draw.number(0, 11)))
    timeout = draw.even(2.0, 3.0)
    return Focus(mode, nodes, timeout, draw.seconds, tuple(sessions), tuple(clients), tuple(faults))


FOCUSES: dict[str, Callable[[_Draw], Focus]] = {
    "ends": _ends,
    "spent": _spent,
    "shares": _shares,
    "silence": _silence,
    "stops": _stops,
}


def focus_of(draw: Random, name: str | None) -> tuple[str, Focus | None]:
    """Return the subject of a run and its draws; "" and None for a mix of everything.

    Args:
        draw: the random stream.
        name: the name of the subject; None to draw one.
    """
    share, which = draw.random(), draw.random()
    if name is None:
        name = "" if share >= SHARE else tuple(FOCUSES)[int(which * len(FOCUSES))]
    if not name or name not in FOCUSES:
        return "", None
    focus = FOCUSES[name](_Draw(draw, round(6.0 + 3.0 * draw.random(), 3)))
    kept = (each for each in focus.faults if focus.mode is NODES or each.kind != "after")
    faults = tuple(sorted(kept, key=lambda each: each.at))
    return name, Focus(
        focus.mode,
        focus.nodes,
        focus.timeout,
        focus.seconds,
        focus.sessions,
        focus.clients,
        faults,
    )
