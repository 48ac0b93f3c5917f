"""Finds exits that lie: fetches pages through them of which the answer is known.

Theory of operation
-------------------
An operator names pages (`[exits] canaries`). Each is fetched from here, twice: if both answers are
the same, that is the truth, and it is taken anew now and then. A page that differs from itself is
no canary.

Through each exit a round of up to `PAGES_PER_ROUND` of them is fetched, by orders like any buyer's:
soon after it has attached, and from then on at random moments, so that nobody knows when. By chance
names are looked up here or at the exit, and connections with it are under TLS or not, as buyers'
are. Until its first round has passed, an exit carries nothing
but port 443, where it cannot change anything unseen (`Attached.is_proven`).

An exit that is not proven carries nothing but port 443 and canaries, so whoever makes a new device
learns the pages of the first round. These are never fetched later through an exit that is proven:
of `SPLIT_LEAST` pages or more, half is for first rounds, and the rest for later ones, among what
buyers ask for (`_halves`).

What is found (`Finding`) is of two sorts:

* certain: another answer, another certificate, junk. It is a verdict if the page is still the same
  when it is fetched from here;
* silence: the exit said that it had connected, and nothing came, or the connection ended too early.
  Networks do that, too. It is a verdict if two fetches of a round end so, pages answer from here,
  and the exit answers on its control connection after that.

An order that fails is no lie, but proves nothing either: the round is run again later. So it is

* when the page does not answer from here;
* when an answer has begun and is not there in time: its owner allows few bytes a second, or buyers
  have filled its line;
* when TLS shows the site's own certificate, and the site says something else: nobody on the way can
  have changed it;
* when the answer is that the visitor is turned away (`TURNED_AWAY`). Buyers may have asked for the
  page through that exit until the site had enough. Then the exit carries port 443 alone until a
  round has passed, so that who changes pages cannot hide behind such a status.

A verdict cuts the exit and bars it (`Judge.bar`); what it
did on its control connection may be a verdict, too (`suspect`).

Where the exit's connections leave (`origin.py`) is looked at apart from the rounds: when it
attaches, and from then on at random moments. The exit sees that it is asked to call the daemon, and
must not learn by it when a round begins. The family that the exit is not attached by is looked at
more often: the router of a device that is attached by IPv6 may have another IPv4 address from one
moment to the next, and the device does not notice. A new address in its own family ends its
connection.

No byte of this belongs to a session: it is neither metered nor paid.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random, SystemRandom
from typing import Final, Protocol, final

from market.base.networks import Address
from proxyd.counters import ExitCounters
from proxyd.egress.candidates import candidates
from proxyd.exits.attached.attached import Attached
from proxyd.exits.dialling.errand import Errand, Unknown, Ways
from proxyd.exits.dialling.origin import OriginCheck
from proxyd.exits.watching.fetch import Answer, CutError, JunkError, Page, fetch
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.wire.hosts import address_of
from storage.engines.errors import StoreError

PAGES_PER_ROUND: Final = 3
SPLIT_LEAST: Final = 2 * PAGES_PER_ROUND  # with fewer pages each round takes any of them
ROUND_SECONDS: Final = 86_400.0  # between two rounds of an exit, on average
AGAIN_MOST_SECONDS: Final = 3_600.0
# Of all exits together. A round is three handshakes here: this is a tenth of a core at most.
ROUNDS_AT_ONCE: Final = 16
ROUND_PAUSE_SECONDS: Final = 0.05
TRUTH_FETCH_SECONDS: Final = 10.0  # of a page, from here
# Between two looks at where the connections of an exit leave, on average. Both families are looked
# at once in `ROUND_SECONDS`, as often as an honest exit may be found elsewhere.
ORIGIN_SECONDS: Final = 1_800.0
TRUTH_SECONDS: Final = 3_600.0
TRUTH_AGAIN_SECONDS = 30.0  # while a page has none
ALIVE_LOOK_SECONDS: Final = 0.1
SWEEP_LEAST: Final = 1_000  # exits that wait for a round, before those that are gone are dropped
PROVEN_KEPT: Final = 100_000  # devices that passed: 100 bytes each
SHOWN_BYTES: Final = 48  # of what differs
# What sites answer to visitors of whom they have had enough, and when they have too many.
TURNED_AWAY: Final = frozenset((403, 408, 425, 429, 451, 500, 502, 503, 504))

_TURNED_AWAY: Final = "turned away"  # a finding that is no verdict
_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class CanaryBounds:
    """How exits are looked at, and for how long each step may take.

    Attributes:
        secure_share: of fetches: few buyers want TLS as far as the exit.
        again_seconds: after a round that proved nothing; doubled each time.
        fetch_seconds: for a page of a few KB, over the slowest line that is worth its name.
        alive_seconds: to answer a ping: several round trips.
        twice_seconds: between the two fetches of a page from here: a page with the time in it
            differs.
        write_again_seconds: between two attempts to write a verdict down.
    """

    secure_share: float = 0.25
    again_seconds: float = 60.0
    fetch_seconds: float = 10.0
    alive_seconds: float = 3.0
    twice_seconds: float = 1.0
    write_again_seconds: float = 5.0


USUAL: Final = CanaryBounds()


# Looks at an exit; the number counts the looks in vain before this one.
Look = Callable[[Attached, int], Coroutine[None, None, None]]


class Judge(Protocol):
    """Writes verdicts down."""

    async def bar(self, device_id: str, kind: str, evidence: str) -> None:
        """Bar a device for what was found.

        Raises:
            StoreError: it is not barred.
        """

    def words(self, kind: str) -> str:
        """Return why a device is barred, for its owner."""


class Gate(Protocol):
    """Takes verdicts: of the listener, what they need."""

    def prove(self, attached: Attached) -> None:
        """Let an exit carry whatever its owner allows."""

    def doubt(self, attached: Attached) -> None:
        """Let an exit carry port 443 alone, until it is proven (again)."""

    def expel(self, attached: Attached, words: str) -> None:
        """Cut an exit with all that goes through it; `words` tell its owner why."""


class TurnedAway(Exception):  # noqa: N818 - nobody is at fault
    """A site would not answer the exit; or so it was answered."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found: its kind, what shows it, and whether that is certain."""

    kind: str
    evidence: str
    is_certain: bool


# More than 12 fields: what it was given, the truth, and who is due when.
@final
class Canaries:
    """Looks whether exits carry what they are given.

    Args:
        ways: how connections are made.
        pages: of which the answer is known.
        origins: looks where exits' connections leave; not asked where it is None.
        judge: writes verdicts down.
        gate: lets go of exits.
        counters: count rounds and verdicts.
        chance: says when, what, and where names are looked up.
        bounds: how it looks, and for how long.
    """

    def __init__(
        self,
        ways: Ways,
        pages: Sequence[Page],
        origins: OriginCheck | None,
        judge: Judge,
        gate: Gate,
        counters: ExitCounters,
        chance: Random | None = None,
        bounds: CanaryBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._ways = ways
        self._loop = ways.reactor.loop
        self._pages = tuple(pages)
        self._first, self._later = _halves(self._pages)
        self._origins = origins
        self._judge = judge
        self._gate = gate
        self._counters = counters
        self._chance = chance or SystemRandom()
        self._truths: dict[Page, Answer] = {}
        self._told: set[Page] = set()  # pages of which the log has said that they are no canaries
        self._is_ready = asyncio.Event()  # set once every page was tried
        self._condemned: set[str] = set()  # devices that are being barred
        # When, a number, which exit, how often in vain before, and what is to be looked at.
        self._due: list[tuple[float, int, Attached, int, Look]] = []
        self._sweep_at = SWEEP_LEAST
        self._number = 0
        self._is_due = asyncio.Event()
        self._proven: dict[str, float] = {}  # when each device's next round is, the oldest first
        self._tasks = OwnedTasks(self._loop, _logger, "looking at exits failed")
        self._slots = asyncio.Semaphore(ROUNDS_AT_ONCE)

    def start(self) -> None:
        """Begin."""
        if self._pages:
            self._tasks.spawn(self._learn())
        else:
            self._is_ready.set()
        if self._pages or self._origins is not None:
            self._tasks.spawn(self._run())

    def close(self) -> None:
        """End all that is under way."""
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is under way any more."""
        await self._tasks.wait()

    def admit(self, attached: Attached) -> None:
        """Have an exit that attaches be looked at: soon, if it is new."""
        now = self._loop.time()
        if self._origins is not None:
            self._schedule(attached, now, 0, self._look_where)
        if self._pages:
            attached.terms.prove(is_proven=attached.device_id in self._proven)
            self._schedule(attached, max(now, self._proven.get(attached.device_id, 0.0)), 0)

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """Bar an exit for what it did on its control connection, where canaries are wanted."""
        if self._pages and attached.device_id not in self._condemned:
            self._condemned.add(attached.device_id)
            self._tasks.spawn(self._condemn(attached, Finding(kind, evidence, is_certain=True)))

    # --- when ----------------------------------------------------------------------------------

    def _schedule(
        self, attached: Attached, due: float, failures: int, look: Look | None = None
    ) -> None:
        """Schedule a look at an exit: a round, unless another look is named."""
        self._number += 1
        heappush(self._due, (due, self._number, attached, failures, look or self._look))
        if len(self._due) >= self._sweep_at:  # devices come and go all day
            self._due = [each for each in self._due if not each[2].is_gone]
            heapify(self._due)
            self._sweep_at = max(SWEEP_LEAST, 2 * len(self._due))
        self._is_due.set()

    async def _run(self) -> None:
        """Begin each round and each look when it is due, and no more than are bearable."""
        loop = self._loop
        await self._is_ready.wait()
        while True:
            self._is_due.clear()
            left = self._due[0][0] - loop.time() if self._due else None
            if left is None or left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._is_due.wait()
                continue
            _, _, attached, failures, look = heappop(self._due)
            if attached.is_gone:
                continue
            await self._slots.acquire()
            self._tasks.spawn(look(attached, failures)).add_done_callback(
                lambda _: self._slots.release()
            )
            await asyncio.sleep(ROUND_PAUSE_SECONDS)

    async def _look_where(self, attached: Attached, failures: int) -> None:
        """Look where the connections of an exit leave, in both families of addresses."""
        await self._call(attached, failures, self._look_where)

    async def _look_where_else(self, attached: Attached, failures: int) -> None:
        """Look where they leave in the family that the exit is not attached by."""
        await self._call(attached, failures, self._look_where_else, other_family=True)

    async def _call(
        self, attached: Attached, failures: int, look: Look, *, other_family: bool = False
    ) -> None:
        """Have an exit call, and look soon again if no call has come.

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
            _logger.exception("exit %s: looking where it leaves failed", attached.device_id)
        if not is_seen:
            self._schedule(attached, now() + self._pause(failures), failures + 1, look)
            return
        is_both = self._chance.random() < ORIGIN_SECONDS / ROUND_SECONDS
        due = now() + self._chance.expovariate(1 / ORIGIN_SECONDS)
        self._schedule(attached, due, 0, self._look_where if is_both else self._look_where_else)

    async def _look(self, attached: Attached, failures: int) -> None:
        """Run a round, and draw the conclusion."""
        if not (attached.is_open and attached.has_place):  # it takes no order now
            self._schedule(attached, self._loop.time() + self._bounds.again_seconds, failures)
            return
        try:
            finding = await self._round(attached)
        except Unknown as error:
            _logger.debug("exit %s: canaries prove nothing: %s", attached.device_id, error)
            self._look_again(attached, failures)
            return
        except TurnedAway as error:
            _logger.debug("exit %s: it is turned away: %s", attached.device_id, error)
            self._proven.pop(attached.device_id, None)
            self._gate.doubt(attached)
            self._look_again(attached, failures)
            return
        except Exception:
            # Whoever finds a mistake of ours must not be rid of further rounds by it.
            _logger.exception("exit %s: looking at it failed", attached.device_id)
            self._look_again(attached, failures)
            return
        if attached.is_gone:
            return
        if finding is not None:
            await self._condemn(attached, finding)
        else:
            self._pass(attached)

    def _pause(self, failures: int) -> float:
        """Return the seconds to wait after some looks without a result."""
        return min(self._bounds.again_seconds * 2.0 ** min(failures, 10), AGAIN_MOST_SECONDS)

    def _look_again(self, attached: Attached, failures: int) -> None:
        """Run another round soon, after one that proved nothing."""
        self._counters.canaries["unknown"] += 1
        self._schedule(attached, self._loop.time() + self._pause(failures), failures + 1)

    def _pass(self, attached: Attached) -> None:
        """Take an exit to be honest until its next round."""
        self._counters.canaries["passed"] += 1
        self._gate.prove(attached)
        due = self._loop.time() + self._chance.expovariate(1 / ROUND_SECONDS)
        self._proven.pop(attached.device_id, None)
        self._proven[attached.device_id] = due
        while len(self._proven) > PROVEN_KEPT:
            del self._proven[next(iter(self._proven))]
        self._schedule(attached, due, 0)

    # --- a round -------------------------------------------------------------------------------

    async def _round(self, attached: Attached) -> Finding | None:
        """Fetch pages through an exit; return what is found, None if it carries what it should.

        Raises:
            Unknown: that cannot be said.
            TurnedAway: a page would not answer it.
        """
        if not self._truths:
            self._gate.prove(attached)  # the operator is told, and nobody is kept out for it
            raise Unknown("no page can be fetched from here")
        half = self._later if attached.is_proven else self._first
        pages = [
            page for page in half if page in self._truths and attached.terms.may_ask(page.port)
        ]
        if not pages:
            raise Unknown("its owner allows no port of a canary")
        silences: list[Finding] = []
        passed, reason = 0, ""
        left = self._chance.sample(pages, min(PAGES_PER_ROUND, len(pages)))
        while left:
            if not attached.is_open:
                raise Unknown("it rests")
            page = left.pop()
            try:
                finding = await self._check(attached, page)
            except Unknown as error:
                reason = str(error)
                continue
            if finding is None:
                passed += 1
            elif finding.is_certain:
                return finding
            else:
                silences.append(finding)
                if len(silences) > 1:
                    await self._require_alive(attached)
                    return silences[-1]
                others = [each for each in pages if each is not page] or [page]
                left.append(self._chance.choice(others))
        if silences or not passed:
            raise Unknown(reason or "one page did not come")
        return None

    async def _check(self, attached: Attached, page: Page) -> Finding | None:
        """Fetch a page through an exit, and compare.

        Raises:
            Unknown: there is nothing to compare.
            TurnedAway: the page would not answer it.
        """
        at_exit = page.is_named and self._chance.random() < 0.5
        finding = await self._compare(attached, page, at_exit=at_exit)
        if finding is None:
            return None
        if self._truths.get(page) != await self._directly(page):
            raise Unknown(f"{page.url} is not what it was")
        if finding.kind == _TURNED_AWAY:
            raise TurnedAway(finding.evidence)
        # One silence is a hiccup, also where the name was looked up at the exit.
        is_wrong = at_exit and finding.is_certain
        if is_wrong and await self._compare(attached, page, at_exit=False) is None:
            return Finding("dns", f"name looked up at the exit: {finding.evidence}", True)
        return finding

    async def _compare(self, attached: Attached, page: Page, *, at_exit: bool) -> Finding | None:
        truth = self._truths.get(page)
        if truth is None:
            raise Unknown(f"{page.url} is no canary any more")
        # An exit must not know buyers by this, and be honest to others alone.
        secure = attached.secure is not None and self._chance.random() < self._bounds.secure_share
        sock = await self._ways.dial(
            attached, _host(page), page.port, dns_at_exit=at_exit, secure=secure
        )
        heard, seconds = asyncio.Event(), self._bounds.fetch_seconds
        fetching = self._loop.create_task(fetch(sock, page, heard.set))
        errand = Errand(fetching)
        attached.begin(errand)
        try:
            done, _ = await asyncio.wait({fetching}, timeout=seconds)
            if not done and heard.is_set():
                raise Unknown(f"{page.url}: not all of it within {seconds:g} s")
            if not done:
                words = f"{page.url}: no answer within {seconds:g} s"
                return Finding("silence", words, is_certain=False)
            if fetching.cancelled():
                raise Unknown("it was cut")
            answer = fetching.result()
        except JunkError as error:
            return Finding("junk", f"{page.url}: {error}", is_certain=True)
        except CutError as error:
            return Finding("silence", f"{page.url}: {error}", is_certain=False)
        finally:
            attached.end(errand)
            if not fetching.done():
                fetching.cancel()
                await asyncio.wait({fetching})
            sock.close()  # if it was cancelled before it began
        return _judged(page, answer, truth)

    async def _require_alive(self, attached: Attached) -> None:
        """Have an exit say that it is there.

        Raises:
            Unknown: it does not: its line is down, or it is gone.
        """
        loop = self._loop
        asked = loop.time()
        attached.pulse.ping()
        while loop.time() < asked + self._bounds.alive_seconds:
            if attached.is_gone:
                break
            if attached.pulse.heard_at >= asked:  # the loop's clock has milliseconds
                return
            await asyncio.sleep(ALIVE_LOOK_SECONDS)
        raise Unknown("it is not there any more")

    async def _condemn(self, attached: Attached, finding: Finding) -> None:
        """Cut an exit, and bar it; that is tried until it is written down."""
        device_id, kind = attached.device_id, finding.kind
        self._condemned.add(device_id)
        self._counters.canaries["failed"] += 1
        self._counters.canary_failures[kind] += 1
        _logger.warning("exit %s: barred, %s: %s", device_id, kind, finding.evidence)
        self._proven.pop(device_id, None)
        self._gate.expel(attached, self._judge.words(kind))
        while True:
            try:
                await self._judge.bar(device_id, kind, finding.evidence)
            except StoreError as error:
                _logger.warning("exit %s: cannot be barred now: %s", device_id, error)
                await asyncio.sleep(self._bounds.write_again_seconds)
            else:
                break
        self._condemned.discard(device_id)

    # --- the truth -----------------------------------------------------------------------------

    async def _learn(self) -> None:
        """Fetch every page from here, twice, again and again."""
        while True:
            await asyncio.gather(*(self._learn_page(page) for page in self._pages))
            if not self._truths:
                _logger.warning("no canary can be fetched: exits are not looked at")
            self._is_ready.set()
            is_whole = len(self._truths) == len(self._pages)
            await asyncio.sleep(TRUTH_SECONDS if is_whole else TRUTH_AGAIN_SECONDS)

    async def _learn_page(self, page: Page) -> None:
        first = await self._directly(page)
        await asyncio.sleep(self._bounds.twice_seconds)
        second = await self._directly(page)
        if first is not None and first == second:
            if self._truths.get(page) != first:
                _logger.info("canary %s: %s", page.url, first)
            self._truths[page] = first
            self._told.discard(page)
            return
        self._truths.pop(page, None)
        if page not in self._told:
            self._told.add(page)
            is_there = first is not None and second is not None
            words = "differs from one fetch to the next" if is_there else "cannot be fetched"
            _logger.warning("canary %s: %s: it is not used", page.url, words)

    async def _directly(self, page: Page) -> Answer | None:
        """Fetch a page from here; None when it does not come."""
        try:
            async with asyncio.timeout(TRUTH_FETCH_SECONDS):
                return await fetch(await self._connect(page), page)
        except (OSError, JunkError, CutError) as error:  # a timeout is such, too
            _logger.debug("canary %s: %s", page.url, error)
            return None

    async def _connect(self, page: Page) -> socket.socket:
        """Return a connection to a page from here.

        Raises:
            OSError: there is none.
        """
        ways = self._ways
        permitted = candidates(await ways.addresses(page.host), page.port, ways.policy)
        if not permitted:
            raise OSError("exits may not be asked for it")
        for at, address in enumerate(permitted, 1):
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                await ways.reactor.loop.sock_connect(sock, (str(address), page.port))
            except OSError:
                sock.close()
                if at == len(permitted):
                    raise
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise OSError("it has no address")


def _halves(pages: tuple[Page, ...]) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    """Return the pages of first rounds and those of later ones.

    Each half has pages with and without TLS, if there are two of each. The halves stay the same
    over restarts, as long as pages are added at the end.
    """
    if len(pages) < SPLIT_LEAST:
        return pages, pages
    plain = tuple(page for page in pages if not page.is_tls)
    secure = tuple(page for page in pages if page.is_tls)
    return plain[::2] + secure[::2], plain[1::2] + secure[1::2]


def _host(page: Page) -> Address | str:
    return page.host if page.is_named else address_of(page.host)


def _judged(page: Page, answer: Answer, truth: Answer) -> Finding | None:
    """Return what an answer shows; None if it is the truth.

    Raises:
        Unknown: it is another one, but no fault of whoever has carried it.
    """
    if answer.certificate != truth.certificate:
        shown = f"certificate {answer.certificate}, expected {truth.certificate}"
        return Finding("certificate", f"{page.url}: {shown}", is_certain=True)
    if answer == truth:
        return None
    words = f"{page.url}: {_difference(answer, truth)}"
    if page.is_tls:
        raise Unknown(f"the site itself says otherwise: {words}")
    if answer.status in TURNED_AWAY and answer.status != truth.status:
        return Finding(_TURNED_AWAY, words, is_certain=False)
    return Finding("content", words, is_certain=True)


def _difference(answer: Answer, truth: Answer) -> str:
    """Return what two answers differ in, with the bytes where they begin to."""
    at = 0
    for at, (one, other) in enumerate(zip(answer.body, truth.body, strict=False)):  # noqa: B007
        if one != other:
            break
    else:
        at = min(len(answer.body), len(truth.body))
    shown = answer.body[at : at + SHOWN_BYTES]
    return f"{answer}, expected {truth}; from byte {at} on: {shown!r}"
