"""Finds exits that lie: fetches pages with known answers through them.

Theory of operation
-------------------
An operator names pages (`[exits] canaries`). Each is fetched from here, twice: if both answers are
the same, that is the truth, and it is taken anew now and then (`truths.py`). A page that differs
from itself is no canary.

Through each exit a round of up to `PAGES_PER_ROUND` of them is fetched (`rounds.py`), by orders
like any buyer's: soon after it has attached, and from then on at random moments, so that its owner
cannot know when. By chance names are looked up here or at the exit, and connections with it are
under TLS or not, as buyers' are. Until its first round has passed, an exit carries nothing but port
443, where it cannot change anything unseen (`Attached.is_proven`).

An exit that is not proven carries nothing but port 443 and canaries, so the owner of a new device
learns the pages of the first round. These are never fetched later through an exit that is proven:
of `SPLIT_LEAST` pages or more, half is for first rounds, and the rest for later ones, among the
requests of buyers (`halves`).

A finding (`Finding`) is of one of two sorts:

* certain: another answer, another certificate, junk. It is a verdict if the page is still the same
  when it is fetched from here;
* silence: the exit said that it had connected, and nothing came, or the connection ended too early.
  Networks also do that. It is a verdict if two fetches of a round end so, pages answer from here,
  and the exit answers on its control connection after that.

An order that fails is no lie, but proves nothing either: the round is run again later. So it is

* when the page does not answer from here;
* when an answer has begun and is not there in time: its owner allows few bytes a second, or buyers
  have filled its line;
* when TLS shows the site's own certificate, and the site says something else: no exit and no
  network on the way can have changed it;
* when the answer is that the visitor is turned away (`TURNED_AWAY`). Buyers may have asked for the
  page through that exit until the site had enough. Then the exit carries port 443 alone until a
  round has passed, so that an exit that changes pages cannot hide behind such a status.

A verdict cuts the exit and bars it (`ExitCanaries.bar`). An act of the exit on its control
connection may also be a verdict (`suspect`).

Where the exit's connections leave (`origin.py`) is looked at apart from the rounds: when it
attaches, and from then on at random moments. The exit notices its order to call the daemon, which
must not show it when a round begins. The family that the exit is not attached by is looked at more
often: the router of a device that is attached by IPv6 may have another IPv4 address from one moment
to the next, and the device does not notice. A new address in its own family ends its connection.

No byte of this belongs to a session: it is neither metered nor paid.
"""

import logging
from collections.abc import Sequence
from random import Random, SystemRandom
from typing import Final, final

from market.exits.canaries import ExitCanaries
from proxyd.counters import ExitCounters
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.offers import Verdicts
from proxyd.exits.dialling.errand import Unknown, Ways
from proxyd.exits.dialling.origin import OriginCheck
from proxyd.exits.watching.agenda import Agenda, Look
from proxyd.exits.watching.bars import Bars
from proxyd.exits.watching.bounds import USUAL, CanaryBounds
from proxyd.exits.watching.fetch import Page
from proxyd.exits.watching.findings import TurnedAway
from proxyd.exits.watching.rounds import Rounds
from proxyd.exits.watching.truths import Truths
from proxyd.loop.owned_tasks import OwnedTasks

ROUND_SECONDS: Final = 86_400.0  # between two rounds of an exit, on average
AGAIN_MOST_SECONDS: Final = 3_600.0
# Between two looks at where the connections of an exit leave, on average. Both families are looked
# at together once in `ROUND_SECONDS`, as often as an honest exit may be found elsewhere.
ORIGIN_SECONDS: Final = 1_800.0
PROVEN_KEPT: Final = 100_000  # devices that passed: 100 bytes each

_logger = logging.getLogger("exits")


@final
class Canaries:
    """Checks that exits carry the bytes of buyers and targets unchanged.

    Args:
        origins: looks where exits' connections leave; None for no such looks.
        chance: draws the times, the pages, and the place where names are looked up.
    """

    def __init__(
        self,
        ways: Ways,
        pages: Sequence[Page],
        origins: OriginCheck | None,
        judge: ExitCanaries,
        gate: Verdicts,
        counters: ExitCounters,
        chance: Random | None = None,
        bounds: CanaryBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._loop = loop = ways.reactor.loop
        self._origins = origins
        self._gate = gate
        self._counters = counters
        self._chance = chance or SystemRandom()
        self._proven: dict[str, float] = {}  # when each device's next round is, the oldest first
        self._tasks = OwnedTasks(loop, _logger, "looking at exits failed")
        self._truths = Truths(ways, pages, bounds.twice_seconds)
        self._rounds = Rounds(ways, self._truths, self._chance, bounds)
        self._agenda = Agenda(loop, self._tasks)
        self._bars = Bars(
            judge, gate, self._unprove, counters, self._tasks, bounds.write_again_seconds
        )

    def start(self) -> None:
        """Begin."""
        has_pages = self._truths.has_pages
        if has_pages:
            self._tasks.spawn(self._truths.learn())
        if has_pages or self._origins is not None:
            self._tasks.spawn(self._run())

    def close(self) -> None:
        """End all running looks."""
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until no look runs any more."""
        await self._tasks.wait()

    def admit(self, attached: Attached) -> None:
        """Schedule the looks at an exit that attaches: soon, if the exit is new."""
        now = self._loop.time()
        if self._origins is not None:
            self._schedule(attached, now, 0, self._look_where)
        if self._truths.has_pages:
            attached.terms.prove(is_proven=attached.device_id in self._proven)
            self._schedule(attached, max(now, self._proven.get(attached.device_id, 0.0)), 0)

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """Bar an exit for an act on its control connection, where canaries are wanted."""
        if self._truths.has_pages:
            self._bars.suspect(attached, kind, evidence)

    async def _run(self) -> None:
        """Begin the looks when the truth is known."""
        if self._truths.has_pages:
            await self._truths.is_ready.wait()
        await self._agenda.run()

    def _schedule(
        self, attached: Attached, due: float, failures: int, look: Look | None = None
    ) -> None:
        """Schedule a look at an exit: a round, unless the caller names another look."""
        self._agenda.schedule(attached, due, failures, look or self._look)

    # --- where it leaves -----------------------------------------------------------------------

    async def _look_where(self, attached: Attached, failures: int) -> None:
        """Find the addresses where an exit's connections leave, in both families of addresses."""
        await self._call(attached, failures, self._look_where)

    async def _look_where_else(self, attached: Attached, failures: int) -> None:
        """Find the address where they leave in the family that the exit is not attached by."""
        await self._call(attached, failures, self._look_where_else, other_family=True)

    async def _call(
        self, attached: Attached, failures: int, look: Look, *, other_family: bool = False
    ) -> None:
        """Order a call from an exit, and look again soon if no call has come.

        It carries no family of addresses before that.
        """
        assert self._origins is not None  # noqa: S101 - nothing is scheduled without it
        now = self._loop.time
        if not (attached.is_open and attached.has_place):  # it takes no order now
            self._schedule(attached, now() + self._bounds.again_seconds, failures, look)
            return
        is_seen = False
        try:
            is_seen = await self._origins.look(attached, other_family=other_family)
        except Exception:
            # A mistake of ours must not end the looks.
            _logger.exception("exit %s: the check of its address failed", attached.device_id)
        if not is_seen:
            self._schedule(attached, now() + self._pause(failures), failures + 1, look)
            return
        is_both = self._chance.random() < ORIGIN_SECONDS / ROUND_SECONDS
        due = now() + self._chance.expovariate(1 / ORIGIN_SECONDS)
        self._schedule(attached, due, 0, self._look_where if is_both else self._look_where_else)

    # --- a round -------------------------------------------------------------------------------

    async def _look(self, attached: Attached, failures: int) -> None:
        """Run a round, and draw the conclusion."""
        if not (attached.is_open and attached.has_place):  # it takes no order now
            self._schedule(attached, self._loop.time() + self._bounds.again_seconds, failures)
            return
        try:
            if not self._truths:
                self._gate.prove(attached)  # the log warns the operator; the exit may still earn
            finding = await self._rounds.run(attached)
        except Unknown as error:
            _logger.debug("exit %s: canaries prove nothing: %s", attached.device_id, error)
            self._look_again(attached, failures)
            return
        except TurnedAway as error:
            _logger.debug("exit %s: pages reject it: %s", attached.device_id, error)
            self._unprove(attached.device_id)
            self._gate.doubt(attached)
            self._look_again(attached, failures)
            return
        except Exception:
            # An owner who finds a mistake of ours must not escape further rounds by it.
            _logger.exception("exit %s: its check failed", attached.device_id)
            self._look_again(attached, failures)
            return
        if attached.is_gone:
            return
        if finding is not None:
            await self._bars.condemn(attached, finding)
        else:
            self._pass(attached)

    def _pause(self, failures: int) -> float:
        """Return the seconds to wait after some looks without a result."""
        return min(self._bounds.again_seconds * 2.0 ** min(failures, 10), AGAIN_MOST_SECONDS)

    def _look_again(self, attached: Attached, failures: int) -> None:
        """Run another round soon, after one that proved nothing."""
        self._counters.canaries["unknown"] += 1
        self._schedule(attached, self._loop.time() + self._pause(failures), failures + 1)

    def _unprove(self, device_id: str) -> None:
        """Make a device pass a first round again before it counts as honest."""
        self._proven.pop(device_id, None)

    def _pass(self, attached: Attached) -> None:
        """Count an exit as honest until its next round."""
        self._counters.canaries["passed"] += 1
        self._gate.prove(attached)
        due = self._loop.time() + self._chance.expovariate(1 / ROUND_SECONDS)
        self._unprove(attached.device_id)
        self._proven[attached.device_id] = due
        while len(self._proven) > PROVEN_KEPT:
            del self._proven[next(iter(self._proven))]
        self._schedule(attached, due, 0)
