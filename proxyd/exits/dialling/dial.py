"""Dials a target through an exit: orders one, and another one after a failure.

Theory of operation
-------------------
An exit never gets an order for a forbidden target: a name is looked up here and every address is
judged, as for a direct connection, unless the buyer wants the exit to look it up.

A dial goes from exit to exit (`_Attempt`, at most `EXITS_MAX` of them) until one of these happens:

* the exit has connected: the relay takes over the connection that waited, and the buyer gets the
  exit's address;
* the target has said no (refused, unreachable, unknown): these are the target's words, another exit
  would get the same, and the buyer gets them;
* the target's refusal comes from an exit whose word is to be checked (`Directory.doubts`), and no
  label needs that exit: a second exit is tried, and the buyer gets the common answer of both. If
  the second one connects, the first has lied, or the target does not want it;
* such an answer is a fault of the exit if the second one connects, except that it has no route by a
  family that it is not attached by;
* the exit has begun no dial, because it had just closed the connection: the same exit is ordered
  the target once more, on another connection;
* the exit is gone, paused, full or silent, or none of its connections comes in time: the next one
  is tried. So it is, once, when the target did not answer, the exit has no route to it (many have
  no IPv6), or does not go there: that may be the exit's own fault, and the buyer gets it when
  another one agrees;
* there is no further exit, or no time left.

An exit that does not answer in time gets a ping, and more of them as long as it does not answer. If
it answers a ping, the same order goes out once more on another of its connections (a hedge), and
the first answer counts. If it says nothing, the next exit is tried: soon where any will do, a
little later where a label would lose its exit or there is no other one, because a busy line may be
late. One that is there, but does not say for long how its dial goes, is left for another one, if no
label needs it; if that one reaches the target, the first was at fault. All that only while the
buyer has heard nothing: after that a lost exit is a broken connection.

Bytes of the target may come before the exit's answer, since they take another way: they wait in the
kernel, and so does the end of the stream.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, final

from market.base.networks import Address
from proxyctl.protocol.frames import DENY, SECURE, UDP, Dialled, DialOutcome
from proxyctl.protocol.policy import Policy
from proxyd.counters import ExitCounters
from proxyd.egress.exit import Cancellable
from proxyd.egress.lookup import Answer, Lookup, known
from proxyd.egress.resolve import Resolver
from proxyd.exits.attached.attached import Attached, Carrier
from proxyd.exits.attached.pool import Asker, Parked, Pool
from proxyd.exits.choosing.entries import ANY_PORT, NO_FEATURES, Missing
from proxyd.exits.choosing.labels import Labels
from proxyd.exits.choosing.places import Place
from proxyd.exits.dialling.evidence import Evidence
from proxyd.exits.dialling.target import TLS_PORT, Target, name_at_exit, seen_address
from proxyd.exits.dialling.watch import ASK_AGAIN_SECONDS, LATE_SECONDS, Watch, patience
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.loop.alarms import Alarms
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.reactor import Reactor
from proxyd.metering.pace import Pace
from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants

EXITS_MAX: Final = 3  # for one dial: more would take longer than a buyer waits
# For one dial: an exit that was agreed on may be away here, and the next one has to be agreed on.
QUESTIONS_MAX: Final = 3
LOANS_TRIED_MAX: Final = 8  # exits that are passed over: they cannot be borrowed or asked now
LOST: Final = "lost"

WORD_OF_OUTCOME: Final = {outcome: outcome.name.lower() for outcome in DialOutcome}

_FOR_DATAGRAMS: Final = frozenset((UDP,))
_FOR_SECURE: Final = frozenset((SECURE,))
_FOR_SECURE_DATAGRAMS: Final = frozenset((UDP, SECURE))
_FOR_NAMES: Final = frozenset((DENY,))  # for look-ups at the exit, where the addresses are judged
_CHANGED: Final = ("X-Exit-Changed: 1",)
_AT_LIMIT: Final = DialOutcome.AT_LIMIT
_CONNECTED: Final = DialOutcome.CONNECTED
_FAILED: Final = DialOutcome.FAILED
_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class DialTimes:
    """Timeouts of an exit before another one is tried.

    Attributes:
        parked_wait_seconds: a connection of an exit is there within two round trips, unless its
            network drops new ones.
        unanswered_seconds: an exit that is there and says nothing of its order waits for a silent
            target, or does not obey. Targets that answer do so to the first or second attempt,
            which are one and three seconds old.
    """

    parked_wait_seconds: float = 2.0
    unanswered_seconds: float = 4.0


USUAL: Final = DialTimes()


@final
class Via:
    """The exit that a connection goes through.

    `attached` counts the connection while it is open. `address` and `port` are the address and the
    port that the target sees, as far as they are known (the port is 0 otherwise). `headers`
    describe the exit to the buyer, and say whether another one was promised to the label before.
    `ports` are the only ones of targets that the exit takes; none for any. `pace` is how fast the
    exit may go; None for any speed. `place` is the exit's place that its dial has taken; None for a
    dial that is counted elsewhere. On port 443 it is not known yet whether the exit has reached the
    target: `proof` is to be called with the first answer, and whether that is TLS, or `fault` when
    a TLS client got something else. A process without exits has both for each port; they count on
    port 443 only. `targets` are the addresses that the exit had to choose from; none if the exit
    looked the name up, or another process has judged the target.
    """

    __slots__ = (
        "address",
        "attached",
        "fault",
        "headers",
        "pace",
        "place",
        "port",
        "ports",
        "proof",
        "targets",
    )

    def __init__(
        self,
        attached: Carrier,
        address: Address,
        port: int,
        headers: tuple[str, ...],
        ports: tuple[int, ...] = (),
        pace: Pace | None = None,
        place: Place | None = None,
        fault: Callable[[], None] | None = None,
        proof: Callable[[bool], None] | None = None,
        targets: tuple[Address, ...] = (),
    ) -> None:
        self.attached = attached
        self.address = address
        self.port = port
        self.headers = headers
        self.ports = ports
        self.pace = pace
        self.place = place
        self.fault = fault
        self.proof = proof
        self.targets = targets


class Buyer(Protocol):
    """Session that pays for a connection."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """Its identifier."""

    @property
    def user_id(self) -> str:
        """Account of the buyer, whose own devices never carry its connections."""

    @property
    def price_per_gb(self) -> int:
        """Price, in micro-USD per GB."""


class Chooser(Protocol):
    """Interface of the directory to choose exits for dials."""

    def pick(
        self,
        wants: Wants,
        *,
        session_id: str,
        owner_id: str,
        price_per_gb: int,
        target: str,
        tried: Sequence[str],
        now: float,
        features: frozenset[str],
        port: int,
    ) -> Attached | RemoteExit | Missing:
        """Choose an exit: see `Directory.pick`."""

    def note(
        self,
        entry: Attached,
        outcome: DialOutcome | None,
        now: float,
        *,
        began: float,
        buyer: str,
        target: str,
    ) -> None:
        """Record the outcome of a dial through an exit: see `Directory.note`."""

    def contradict(self, entry: Attached, now: float, *, buyer: str, target: str) -> None:
        """Note that another exit has reached a target that this one has called unreachable."""

    def suspect(self, entry: Attached, now: float, *, buyer: str, target: str) -> None:
        """Note that an exit sent a TLS client something else: see `Directory.suspect`."""

    def prove(self, entry: Attached, now: float, *, target: str) -> None:
        """Note that an exit sent a TLS client TLS: see `Directory.prove`."""

    def doubts(self, entry: Attached) -> bool:
        """Return whether a target's refusal should be checked through a second exit."""

    def take_move(self, wants: Wants, session_id: str) -> bool:
        """Return whether a label has another exit than before; each move is returned once."""


class Borrower(Protocol):
    """Borrows exits that are attached to other nodes."""

    def exit_of(self, entry: RemoteExit) -> Attached | None:
        """Return an exit of another node, borrowed for a dial; None when it cannot be borrowed."""


# Takes the outcome of a dial, as `egress.exit.Done` does, and through which exit.
Done = Callable[[socket.SocketType | Failure, bool, Via | None], None]


class Ways(Protocol):
    """The ways out through exits, whichever process they are attached to."""

    __slots__ = ()

    def dial(
        self, wants: Wants, session: Buyer, host: Address | str, port: int, done: Done
    ) -> Cancellable:
        """Begin to connect to a target through an exit.

        Args:
            wants: the buyer's requirements on the exit.
            session: whose buyer it is for.
            host: an address, or a name.
            port: the target's port.
            done: called once, perhaps before this returns, unless the dial is cancelled first.
        """

    def associate(self, wants: Wants, session: Buyer, done: Done) -> Cancellable:
        """Begin to have an exit carry datagrams.

        The socket that `done` gets is the exit's work connection. On it datagrams go both ways,
        each behind a length of two bytes and the header of RFC 1928, section 7. None of them was
        judged: the caller checks the target of each.

        Args:
            wants: the buyer's requirements on the exit, which must also carry datagrams.
            session: whose buyer it is for.
            done: as for `dial`.
        """

    def change_seconds(self, seconds: float) -> None:
        """Change the time that dials may take in all, also for dials under way."""

    def close(self) -> None:
        """Stop watching deadlines."""


@final
class Exits(Ways):
    """Collaborators of all dials through the exits that are attached here.

    Args:
        reactor: shared by the sockets of the loop; one that is handed over stays watched.
        seconds: how long a dial may take in all.
        encrypts_all: whether every connection of an exit is to be under TLS.
        borrower: borrows exits of other nodes; None where there are none.
        labels: agree with other nodes on the exits of labels; None where there are none.
    """

    __slots__ = (
        "alarms",
        "borrower",
        "counters",
        "deadlines",
        "directory",
        "encrypts_all",
        "labels",
        "policy",
        "reactor",
        "resolver",
        "times",
    )

    def __init__(
        self,
        reactor: Reactor,
        directory: Chooser,
        resolver: Resolver,
        policy: Policy,
        seconds: float,
        counters: ExitCounters,
        *,
        encrypts_all: bool = False,
        borrower: Borrower | None = None,
        labels: Labels | None = None,
        times: DialTimes = USUAL,
    ) -> None:
        self.times = times
        self.encrypts_all = encrypts_all
        self.reactor = reactor
        self.directory = directory
        self.resolver = resolver
        self.policy = policy
        self.counters = counters
        self.borrower = borrower
        self.labels = labels
        self.alarms = Alarms(reactor.loop)
        self.deadlines: Deadlines[ExitDial] = Deadlines(reactor.loop, seconds)

    def dial(
        self, wants: Wants, session: Buyer, host: Address | str, port: int, done: Done
    ) -> "ExitDial":
        """Begin to connect to a target through an exit: see `Ways.dial`."""
        dial = ExitDial(self, wants, session, port, done)
        try:
            dial.start(host)
        except BaseException:  # the caller has nothing yet that it could cancel
            dial.cancel()
            raise
        return dial

    def associate(self, wants: Wants, session: Buyer, done: Done) -> "ExitDial":
        """Begin to have an exit carry datagrams: see `Ways.associate`."""
        dial = ExitDial(self, wants, session, ANY_PORT, done)
        try:
            dial.start_datagrams()
        except BaseException:  # the caller has nothing yet that it could cancel
            dial.cancel()
            raise
        return dial

    def change_seconds(self, seconds: float) -> None:
        """Change the time that dials may take in all, also for dials under way."""
        self.deadlines.seconds = seconds

    def close(self) -> None:
        """Stop watching deadlines."""
        self.deadlines.close()
        self.alarms.close()


@final
class ExitDial(Cancellable, Expiring):
    """One dial of a target through exits; see the theory above.

    Args:
        port: the target's port; `ANY_PORT` for datagrams.
        done: called with the outcome, perhaps before `start` returns; never after `cancel`.
    """

    __slots__ = (
        "_attempts",
        "_began",
        "_done",
        "_evidence",
        "_exits",
        "_pending",
        "_questions",
        "_session",
        "_target",
        "_tried",
        "_wants",
        "_watch",
    )

    def __init__(self, exits: Exits, wants: Wants, session: Buyer, port: int, done: Done) -> None:
        self._exits = exits
        self._wants = wants
        self._session = session
        self._target = Target(port)
        self._done: Done | None = done
        self._pending: Cancellable | None = None  # the look-up, or the question for a label's exit
        self._questions = 0
        self._attempts: dict[_Attempt, None] = {}
        self._tried: list[Attached] = []
        self._evidence = Evidence()
        self._watch = Watch(exits.reactor.loop, exits.alarms)
        self._began = 0.0

    def start(self, host: Address | str) -> None:
        """Begin. A name is looked up here, unless the exit looks it up."""
        exits, wants = self._exits, self._wants
        if wants.tls_only and self._target.port != TLS_PORT:
            self._finish(Failure.NOT_ALLOWED)
            return
        exits.deadlines.add(self)
        self._began = exits.reactor.loop.time()
        if not isinstance(host, str):
            self._judge([host])
        elif wants.dns_at_exit and (name := name_at_exit(host)):
            if exits.policy.permits_port(self._target.port):
                self._target.host = name
                self._next()
            else:
                self._finish(Failure.NOT_ALLOWED)
        else:
            self._look_up(host)

    def start_datagrams(self) -> None:
        """Begin, for datagrams: no target is known yet."""
        exits = self._exits
        exits.deadlines.add(self)
        self._began = exits.reactor.loop.time()
        self._next()

    def cancel(self) -> None:
        """Cancel the dial, without calling `done`: see `Cancellable.cancel`."""
        self._done = None
        self._release()

    def timed_out(self) -> None:
        """Fail the dial: its time is over."""
        is_asked = self._evidence.failure is not None or not self._attempts
        if is_asked or any(not each.is_waiting for each in self._attempts):
            self._finish(Failure.TIMED_OUT)
        else:  # no exit has dialled the target
            self._finish(Failure.NO_EXIT)

    @property
    def tried(self) -> tuple[tuple[str, str], ...]:
        """Devices that were ordered the target so far, each with its address."""
        return tuple((each.device_id, str(each.address)) for each in self._tried)

    # --- the target ----------------------------------------------------------------------------

    def _look_up(self, name: str) -> None:
        exits = self._exits
        answer = known(exits.resolver, name)
        if answer is not None:
            self._looked_up(answer)
            return
        self._pending = Lookup(
            exits.reactor.loop, exits.resolver, name, self._session.id, self._looked_up
        )

    def _looked_up(self, answer: Answer) -> None:
        self._pending = None
        if isinstance(answer, Failure):
            self._finish(answer)
        else:
            self._judge(answer)

    def _judge(self, addresses: list[Address]) -> None:
        if self._target.judge(addresses, self._exits.policy):
            self._next()
        else:
            self._finish(Failure.NOT_ALLOWED)

    # --- the exits -----------------------------------------------------------------------------

    def _next(self) -> None:
        """Try one more exit, if there is one that may be tried."""
        chosen, labels = self._choose(), self._exits.labels
        if labels is not None and self._has_to_ask(chosen, labels):
            self._watch.stop()  # no exit is tried meanwhile
            self._questions += 1
            session = self._session
            self._pending = labels.ask(self._wants, session.id, session.user_id, self._agreed)
        elif isinstance(chosen, Failure):
            self._finish(chosen)
        else:
            self._try(chosen)

    def _has_to_ask(self, chosen: Attached | Failure, labels: Labels) -> bool:
        """Return whether other nodes have to agree on the choice."""
        if not self._wants.session or self._questions >= QUESTIONS_MAX:
            return False
        if not isinstance(chosen, Failure):
            return labels.must_ask(self._wants, self._session.id)
        return (
            chosen is Failure.NO_EXIT
            and not self._questions
            and not self._tried
            and labels.must_look(self._wants, self._session.id)
        )

    def _agreed(self) -> None:
        """Continue: the label has an exit that all nodes know."""
        self._pending = None
        self._next()

    def _try(self, chosen: Attached) -> None:
        """Order the target from an exit, on a waiting connection or on the next one."""
        if self._tried:
            self._exits.counters.failovers += 1
        self._tried.append(chosen)
        self._watch.chosen_at = self._exits.reactor.loop.time()
        self._watch.has_hedged = False
        attempt = _Attempt(self, chosen, self._pool_of(chosen))
        self._attempts[attempt] = None
        if not attempt.start():
            self._watch.wait(patience(chosen) / 2, self._ask)

    def _pool_of(self, attached: Attached) -> Pool:
        """Return the pool of an exit that fits: under TLS, or any."""
        if not self._is_secure:
            return attached.pool
        assert attached.secure is not None  # noqa: S101 - no other one was chosen
        return attached.secure

    @property
    def buyer(self) -> str:
        """The account that pays for it; "" for the house."""
        return self._session.user_id

    @property
    def is_datagrams(self) -> bool:
        """Whether the exit should carry datagrams."""
        return self._target.is_datagrams

    @property
    def _is_secure(self) -> bool:
        """Whether the connection with the exit has to be under TLS."""
        return self._wants.secure or self._exits.encrypts_all

    @property
    def _features(self) -> frozenset[str]:
        """Features that the exit must offer."""
        if self._target.is_datagrams:
            features = _FOR_SECURE_DATAGRAMS if self._is_secure else _FOR_DATAGRAMS
            return features | _FOR_NAMES if self._wants.dns_at_exit else features
        features = _FOR_SECURE if self._is_secure else NO_FEATURES
        return features | _FOR_NAMES if self._target.is_name else features

    def _choose(self) -> Attached | Failure:
        """Return an exit that may dial the port, or the reason why no exit may."""
        if len(self._tried) >= EXITS_MAX:
            return self._evidence.failure or Failure.NO_EXIT
        session, exits, target = self._session, self._exits, self._target
        tried = [each.device_id for each in self._tried]
        while True:
            chosen = exits.directory.pick(
                self._wants,
                session_id=session.id,
                owner_id=session.user_id,
                price_per_gb=session.price_per_gb,
                target=target.site,
                tried=tried,
                now=exits.reactor.loop.time(),
                features=self._features,
                port=target.port,
            )
            if chosen is Missing.EXIT_LOST:
                return Failure.EXIT_LOST
            if isinstance(chosen, Missing):
                is_port = chosen is Missing.NOT_ALLOWED and not self._tried
                no_exit = Failure.NOT_ALLOWED if is_port else Failure.NO_EXIT
                return self._evidence.failure or no_exit
            attached = self._dialled_by(chosen)
            # A label keeps its exit, even if that cannot be borrowed or asked for the target.
            is_fit = attached is not None and target.may_be_dialled_by(attached)
            if attached is not None and (self._wants.session or is_fit):
                return attached
            if self._wants.session or len(tried) >= len(self._tried) + LOANS_TRIED_MAX:
                return Failure.NO_EXIT
            tried.append(chosen.device_id)

    def _dialled_by(self, chosen: Attached | RemoteExit) -> Attached | None:
        """Return the exit to dial through: borrow an exit of another node, if that is possible."""
        if isinstance(chosen, Attached):
            return chosen
        borrower = self._exits.borrower
        attached = None if borrower is None else borrower.exit_of(chosen)
        if attached is None or not attached.has_place_for(self.buyer, datagrams=self.is_datagrams):
            return None
        return attached

    def ordered(self, attempt: "_Attempt") -> None:
        """Send an exit its order, and a ping later if it does not answer soon."""
        if len(self._attempts) == 1:
            self._watch.wait(patience(attempt.attached) / 2, self._ask)
        target = self._target
        if target.is_datagrams:
            attempt.attached.order_datagrams(attempt.taken, attempt)
            return
        host = attempt.attached.permitted(target.host)
        if host:
            attempt.attached.order(attempt.taken, host, target.port, attempt)
        else:  # later, because the pool is handing the connection over
            self._exits.reactor.loop.call_soon(self._pass_over, attempt)

    def _pass_over(self, attempt: "_Attempt") -> None:
        """Try another exit, because this one would reach its own router instead of the target."""
        if attempt in self._attempts:
            self._let_go(attempt)
            if not self._attempts:
                self._next()

    def answered(self, attempt: "_Attempt", dialled: Dialled) -> None:
        """Handle the answer of an exit to an order."""
        if attempt not in self._attempts:  # given up meanwhile
            return
        outcome, exits = dialled.outcome, self._exits
        if outcome is _FAILED and not dialled.micros and not self._watch.has_repeated:
            self._watch.has_repeated = True
            self._repeat(attempt)
            return
        exits.counters.dials[WORD_OF_OUTCOME[outcome]] += 1
        if outcome is not _CONNECTED or self._target.port != TLS_PORT:
            self._note(attempt.attached, outcome)
        if outcome is _AT_LIMIT and (self.is_datagrams or not self._target.is_name):
            # Older exits answer a name like that if it waits for a look-up: they are not full.
            attempt.attached.places.fill(exits.reactor.loop.time(), datagrams=self.is_datagrams)
        if outcome is _CONNECTED:
            self._connected(attempt, dialled)
            return
        self._let_go(attempt)
        self._failed(attempt.attached, outcome)

    def _repeat(self, attempt: "_Attempt") -> None:
        """Order the target once more: the exit has begun no dial.

        It had closed the connection, and the order met the end of that on its way.
        """
        attached = attempt.attached
        self._exits.counters.hedges += 1
        self._let_go(attempt)
        again = _Attempt(self, attached, self._pool_of(attached))
        self._attempts[again] = None
        again.start()

    def _failed(self, attached: Attached, outcome: DialOutcome) -> None:
        """Report to the buyer that an exit has not reached the target, or try another exit."""
        doubts = None if self._wants.session else self._exits.directory.doubts
        failure = self._evidence.add(attached, outcome, self._target, doubts)
        if failure is not None:
            self._finish(failure)
            return
        if self._evidence.concerns_target(outcome):  # the same exit would say the same again
            self._let_all_go()
        if not self._attempts:
            self._next()

    def lost(self, attempt: "_Attempt") -> None:
        """Try another exit, because this one is gone or silent."""
        if attempt not in self._attempts:  # given up meanwhile
            return
        self._note_lost(attempt.attached)
        self._give_up()
        self._next()

    def _note_lost(self, attached: Attached) -> None:
        self._note(attached, None)

    def _note(self, attached: Attached, outcome: DialOutcome | None) -> None:
        exits, buyer = self._exits, self._session.user_id
        now = exits.reactor.loop.time()
        began = self._watch.chosen_at
        exits.directory.note(
            attached, outcome, now, began=began, buyer=buyer, target=self._target.site
        )

    def _give_up(self) -> None:
        """Release the exit that is tried now, with all its orders."""
        self._exits.counters.dials[LOST] += 1
        self._let_all_go()

    # --- an exit that takes its time -----------------------------------------------------------

    def _ask(self) -> None:
        """Send the exit a ping."""
        attached = self._tried[-1]
        self._watch.ask(attached)
        self._watch.wait(patience(attached) / 2, self._look)

    def _look(self) -> None:
        """Check whether the exit has sent anything since the ping."""
        attached, watch = self._tried[-1], self._watch
        if watch.is_late(attached.load.now()):
            watch.wait(LATE_SECONDS, self._look)
            return
        if watch.is_silent(attached):
            self._silent(attached)
            return
        first, times = next(iter(self._attempts)), self._exits.times
        watch.wait(ASK_AGAIN_SECONDS, self._ask)
        if first.is_waiting:
            if attached.load.now() >= first.began + times.parked_wait_seconds:
                self._no_connection(first)
        elif not watch.has_hedged:
            watch.has_hedged = True
            self._hedge(attached)
        elif (
            attached.load.now() >= first.began + times.unanswered_seconds
            and self._evidence.failure is None
        ):
            self._unanswered(attached)

    def _hedge(self, attached: Attached) -> None:
        """Order the target once more, on another connection of the same exit."""
        if attached.has_place_for(self.buyer, datagrams=self.is_datagrams):
            self._exits.counters.hedges += 1
            hedge = _Attempt(self, attached, self._pool_of(attached))
            self._attempts[hedge] = None
            hedge.start()

    def _silent(self, attached: Attached) -> None:
        """Try another exit, now or after a timeout, because this one sends nothing."""
        left = self._watch.silence_left(attached.load.now())
        if left <= 0:
            self.lost(next(iter(self._attempts)))
            return
        if not self._wants.session:
            chosen = self._choose()
            if isinstance(chosen, Attached):
                self._note_lost(attached)
                self._give_up()
                self._try(chosen)
                return
        self._watch.wait(left, self._look)

    def _unanswered(self, attached: Attached) -> None:
        """Try another suitable exit, if any, because a live exit does not answer its order."""
        if self._wants.session:  # a target that does not answer costs no label its exit
            return
        chosen = self._choose()
        if isinstance(chosen, Attached):
            self._evidence.note_late(attached)
            self._give_up()
            self._try(chosen)

    def _no_connection(self, first: "_Attempt") -> None:
        """Try another exit, or wait on, because no connection of this one came in time."""
        attached = first.attached
        is_noted = attached.keeps_its_pace  # its owner's limit is no fault
        if not is_noted and self._wants.session and not first.is_overdue:
            # First: a label keeps its exit as long as that has done nothing wrong.
            self._note_lost(attached)
            is_noted = True
        first.is_overdue = True
        chosen = self._choose()
        if isinstance(chosen, Attached):
            if not is_noted:
                self._note_lost(attached)
            self._give_up()
            self._try(chosen)
        elif chosen is Failure.EXIT_LOST:
            self._finish(chosen)

    def _connected(self, attempt: "_Attempt", dialled: Dialled) -> None:
        """End the dial with the connection to the target."""
        exits, attached, evidence = self._exits, attempt.attached, self._evidence
        if evidence.doubted is not None:
            self._note_lost(evidence.doubted)
        if evidence.refused_by is not None:
            self._contradict(evidence.refused_by)
        exits.counters.seconds.observe(exits.reactor.loop.time() - self._began)
        parked, place = attempt.keep()
        del self._attempts[attempt]
        has_moved = exits.directory.take_move(self._wants, self._session.id)
        via = Via(
            attached,
            seen_address(attached.address, dialled.address),
            dialled.port,
            (attached.header, *_CHANGED) if has_moved else (attached.header,),
            attached.ports,
            attached.pace,
            place,
            targets=() if isinstance(self._target.host, str) else self._target.host,
        )
        if self._target.port == TLS_PORT:
            via.fault = partial(self._suspect, attached)
            via.proof = partial(self._prove, attached)
        self._finish(parked.sock, via, is_unread=parked.is_unread)

    def _suspect(self, attached: Attached) -> None:
        """Note that the first answer to a TLS client is not TLS, by the exit or the target."""
        exits = self._exits
        now = exits.reactor.loop.time()
        exits.directory.suspect(attached, now, buyer=self.buyer, target=self._target.site)

    def _prove(self, attached: Attached, is_tls: bool) -> None:
        """Note a first answer on port 443 that may be the target's."""
        exits = self._exits
        self._note(attached, _CONNECTED)
        if is_tls:
            now = exits.reactor.loop.time()
            exits.directory.prove(attached, now, target=self._target.site)

    def _contradict(self, attached: Attached) -> None:
        """Note that an exit has given a false answer about the target."""
        exits = self._exits
        now = exits.reactor.loop.time()
        exits.directory.contradict(attached, now, buyer=self.buyer, target=self._target.site)

    # --- the end -------------------------------------------------------------------------------

    def _let_go(self, attempt: "_Attempt") -> None:
        del self._attempts[attempt]
        attempt.close(self._exits.reactor)

    def _let_all_go(self) -> None:
        while self._attempts:
            self._let_go(next(iter(self._attempts)))

    def _finish(
        self,
        outcome: socket.SocketType | Failure,
        via: Via | None = None,
        *,
        is_unread: bool = False,
    ) -> None:
        done, self._done = self._done, None
        self._release()
        if done is not None:
            done(outcome, is_unread, via)
        elif isinstance(outcome, socket.SocketType):
            self._exits.reactor.poller.forget(outcome.fileno())
            outcome.close()
            if via is not None and via.place is not None and isinstance(via.attached, Attached):
                via.attached.places.leave(via.place, via.attached.load.now())

    def _release(self) -> None:
        """Stop all orders and timers."""
        self._exits.deadlines.discard(self)
        self._watch.stop()
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._let_all_go()


@final
class _Attempt(Asker):
    """One order of one exit.

    Args:
        pool: the pool of suitable connections of the exit.
    """

    __slots__ = ("_dial", "_parked", "_place", "_pool", "attached", "began", "is_overdue")

    def __init__(self, dial: ExitDial, attached: Attached, pool: Pool) -> None:
        self._dial = dial
        self._pool = pool
        self._place: Place | None = None
        if dial.buyer:  # the house counts its connections itself
            self._place = attached.take_place(dial.buyer, datagrams=dial.is_datagrams)
        self._parked: Parked | None = None
        self.attached = attached
        self.began = attached.load.now()
        self.is_overdue = False

    @property
    def buyer(self) -> str:
        """See `Asker.buyer`."""
        return self._dial.buyer

    @property
    def is_waiting(self) -> bool:
        """Whether it has no connection yet, and so gave no order."""
        return self._parked is None

    @property
    def taken(self) -> Parked:
        """The connection that it has."""
        assert self._parked is not None  # noqa: S101 - an order goes out on one
        return self._parked

    def start(self) -> bool:
        """Take a connection and give the order, or wait for one and return False."""
        parked = self._pool.take(self)
        if parked is None:
            return False
        self.take(parked)
        return True

    def take(self, parked: Parked) -> None:
        """See `Asker.take`."""
        self._parked = parked
        if self._place is not None:
            self.attached.places.order(self._place, parked.number)
        self._dial.ordered(self)

    def answer(self, dialled: Dialled) -> None:
        """See `Asker.answer`."""
        self._dial.answered(self, dialled)

    def lose(self) -> None:
        """See `Asker.lose`."""
        self._dial.lost(self)

    def keep(self) -> tuple[Parked, Place | None]:
        """Return its connection and its place, which the caller owns."""
        parked, self._parked = self.taken, None
        place, self._place = self._place, None
        return parked, place

    def close(self, reactor: Reactor) -> None:
        """Ignore the answer, and close the connection, so that the exit also gives up."""
        self._pool.stop_waiting(self)
        parked, self._parked = self._parked, None
        if parked is not None:
            self.attached.forgo(parked.number)
            reactor.poller.forget(parked.sock.fileno())
            parked.sock.close()
        place, self._place = self._place, None
        if place is not None:
            self.attached.places.leave(place, self.attached.load.now())
