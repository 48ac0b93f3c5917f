"""Carries strangers' connections, as far as the owner, the daemon and the guard let it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from proxyctl.attach.daemon.borrower import CONNECT_SECONDS as BORROWER_SECONDS
from proxyctl.attach.daemon.borrower import Borrower
from proxyctl.attach.network.pace import Pace
from proxyctl.attach.network.sniff import name_in
from proxyctl.attach.relay.attempts import TaskAttempt, close_spare
from proxyctl.attach.relay.dial import Dialer, Reached, connect, outcome_of
from proxyctl.exit.base.denied import Denied
from proxyctl.exit.base.limits import lesser
from proxyctl.exit.carrying.datagrams import USUAL as DATAGRAMS
from proxyctl.exit.carrying.datagrams import DatagramRelay, DatagramTimes
from proxyctl.exit.carrying.pool import PARKED_MAX, Pool, Room
from proxyctl.protocol.addresses import plain
from proxyctl.protocol.frames import (
    CALL,
    SECURE_TICKETS,
    Associate,
    Call,
    Capacity,
    Deny,
    Dial,
    Dialled,
    DialOutcome,
    Encrypt,
    For,
    Frame,
    FrameError,
    Lend,
    Lent,
    Over,
    Park,
    Ping,
    Pong,
    Return,
    Seen,
    ServiceLimits,
    Tickets,
    Welcome,
    decode_whole,
    encode,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from proxyctl.attach.daemon.secure import SecureDoor
    from proxyctl.attach.network.lan import Guard
    from proxyctl.attach.relay.attempts import Attempt, Connected
    from proxyctl.attach.relay.relays import AnyRelay, Relays, Work
    from proxyctl.exit.base.journal import Journal
    from proxyctl.exit.base.limits import DeviceLimits
    from proxyctl.protocol.addresses import Address

# After a dial that failed the daemon closes the work connection, once it has read why.
FAILED_DIAL_SECONDS: Final = 10.0
CLOSED_SECONDS: Final = 2.0  # only a safeguard: a reset takes one turn of the loop
# The daemon closes a relay and gives the next order in one moment, by two connections: the order
# may come first. It waits for the relay's place; the relay's end takes a round trip at most.
PLACE_SECONDS: Final = 1.0
PORTS_SAID_MAX: Final = 256  # to the daemon: its frames are short; more ports are judged here alone
HELD_MAX: Final = 64  # orders that wait for a place; a daemon that knows the limit sends few
PACE_BURST_SECONDS: Final = 0.25  # short enough that a video call beside it goes on
READ_MAX_BYTES: Final = 1024 * 1024  # as much as a pipe takes
READ_LEAST_BYTES: Final = 4096  # a limit may be overshot by so little; less is not worth a call
CONNECT_SECONDS: Final = 10.0  # to the daemon
CALLS_MAX: Final = 4  # under way: one for each family, and those of an attachment before

OWN_ADDRESSES_KEPT: Final = 16  # of this device; a home gives it new ones now and then

_HOME: Final = 0  # the number of the attachment to the exit's own daemon

_NO_LIMITS: Final = ServiceLimits(0, 0, 0, ())


@dataclass(frozen=True)
class CarryingBounds:
    """The bounds on the connections of an exit.

    Attributes:
        idle_seconds: a relay without bytes for this time is reset. The daemon's own bound is 300 s
            by default, and an operator may raise it; so this one only frees relays that the daemon
            has forgotten.
        associations_max: the datagrams of a buyer take two sockets and memory, together a few
            megabytes.
        borrowers_max: daemons that one exit is lent to at once: more than a service has.
        borrower_seconds: how long a connection to one of them may take.
        parked_max: work connections that are open and wait.
    """

    idle_seconds: float = 1_800.0
    associations_max: int = 8
    borrowers_max: int = 64
    borrower_seconds: float = BORROWER_SECONDS
    parked_max: int = PARKED_MAX
    datagrams: DatagramTimes = DATAGRAMS


USUAL: Final = CarryingBounds()


# More than 12 fields: objects that it was given, and work under way.
class Carrier:
    """Dials, relays and counts. It and its running relays outlive attachments.

    Args:
        counted: called after bytes were counted, when a limit of bytes is reached.
    """

    def __init__(
        self,
        *,
        guard: Guard,
        limits: DeviceLimits,
        journal: Journal,
        counted: Callable[[], None],
        relays: Relays,
        loop: asyncio.AbstractEventLoop,
        bounds: CarryingBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self.paused = ""
        self._guard = guard
        self._own = limits
        self._asked = _NO_LIMITS
        self._daily = limits.bytes_per_day
        self._journal = journal
        self._counted = counted
        self._loop = loop
        self._sockets = relays
        self._dialer = Dialer(guard, relays.connect, loop)
        self._pace = Pace(limits.bytes_per_second, PACE_BURST_SECONDS, loop.time)
        self._room = Room(limits.dials_per_second, loop.time, bounds.parked_max)
        self._attachment: _Attachment | None = None
        self._door: tuple[Address, int] | None = None
        self._denied = Denied()
        self._calls: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # orders of datagrams that begin
        self._borrowers: dict[int, _Attachment] = {}
        # By the number of the loan, and of the work connection.
        self._dials: dict[tuple[int, int], _Order] = {}
        self._held: dict[tuple[int, int], _Held] = {}  # orders that wait for a place
        # With the order that each is the end of, where the daemon has the end reported.
        self._relays: dict[AnyRelay, tuple[_Attachment, int]] = {}
        self._associations: set[DatagramRelay] = set()  # of these, and some that begin
        self._all_over: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        """Number of connections that are carried or dialled."""
        return len(self._relays) + len(self._dials)

    @property
    def capacity(self) -> Capacity:
        """The limits of this device that the daemon has to know."""
        own = self._own
        is_any_port = self._guard.has_opened or len(own.ports) > PORTS_SAID_MAX
        return Capacity(
            own.connections,
            self._bounds.associations_max,
            () if is_any_port else own.ports,
            own.dials_per_second,
        )

    @property
    def parked(self) -> int:
        """The number of waiting work connections."""
        return sum(len(pool) for each in self._attachments() for pool, _ in each.pools())

    def attach(
        self,
        welcome: Welcome,
        address: Address,
        port: int,
        send: Callable[[Frame], None],
        secure: SecureDoor,
    ) -> None:
        """Work for a daemon that let this exit in, at the address that was reached."""
        self.detach()
        self._guard.surroundings.refresh()  # a device that attaches anew may be elsewhere
        self._guard.surroundings.attached_from(welcome.address)

        pool, secure_pool = (
            Pool(
                welcome.attachment,
                partial(self._sockets.connect, address, port, CONNECT_SECONDS),
                room=self._room,
                lost=partial(self._work_is_lost, _HOME),
                relays=relays,
                loop=self._loop,
            )
            for relays in (self._sockets, secure)
        )
        self._attachment = _Attachment(_HOME, pool, address, welcome.address, send, self._loop)
        self._attachment.secure = secure_pool
        self._door = plain(address), port
        self._limit(welcome.limits)

    def detach(self) -> None:
        """Drop everything that needs a control connection; relays continue."""
        for key in tuple(self._held):
            self._drop(key)
        for order in tuple(self._dials.values()):
            order.cancel()
        for task in self._calls:
            task.cancel()
        for each in self._attachments():
            each.close()
        self._borrowers.clear()
        self._attachment = None

    def receive(self, frame: Frame) -> None:
        """Obey a frame of the daemon, if it is about carrying."""
        attachment = self._attachment
        if attachment is None:
            return
        if isinstance(frame, Dial):  # most frames are
            self._start(frame, attachment)
        elif isinstance(frame, ServiceLimits):
            self._limit(frame)
        elif isinstance(frame, Lend):
            attachment.send(Lent(frame.number, self._lend(frame, attachment)))
        elif isinstance(frame, Return):
            self._return(frame.number)
        elif isinstance(frame, For):
            self._receive_for(frame)
        elif isinstance(frame, Deny):
            self._denied.learn(frame)
        elif isinstance(frame, Seen):
            self._guard.surroundings.learn_public(frame.address)
        elif isinstance(frame, Call):
            self._begin_call(frame)
        else:
            self._obey(frame, attachment)

    def pause(self, reason: str) -> None:
        """Stop taking connections for this reason; take some again if it is empty."""
        self.paused = reason
        self._begin_held()
        for each in self._attachments():
            for pool, wanted in each.pools():
                pool.park(0 if reason else wanted)
                if reason:
                    pool.close()

    def cut(self) -> None:
        """Reset all connections immediately."""
        for order in tuple(self._dials.values()):
            order.cancel()
        for relay in tuple(self._relays):
            relay.abort()
        self._sockets.cut()

    async def closed(self) -> None:
        """Wait until everything that was cut is gone."""
        tasks = (*self._tasks, *self._calls)
        if tasks:
            await asyncio.wait(tasks)
        await self._sockets.closed()
        if self._relays:
            self._all_over = self._loop.create_future()
            await asyncio.wait({self._all_over}, timeout=CLOSED_SECONDS)

    def tend(self) -> None:
        """Reset relays that are broken, or through which nothing has gone for long.

        Work connections that wait, or have waited for long, notice a dead daemon from then on.
        """
        for each in self._attachments():
            for pool, _ in each.pools():
                pool.tend()
        before = self._loop.time() - self._bounds.idle_seconds
        for relay in tuple(self._relays):
            if relay.moved_at < before:
                relay.abort()
            else:
                relay.tend()

    def used_up(self) -> str:
        """Return which limit of bytes is reached, in words; empty if none is."""
        daily = self._daily
        if daily and self._journal.bytes_today >= daily:
            return "the limit of bytes for today is reached"
        if self._own.bytes_per_month and (
            self._journal.bytes_this_month >= self._own.bytes_per_month
        ):
            return "the limit of bytes for this month is reached"
        return ""

    def count(self, size: int) -> float:
        """Count bytes of a relay; return the seconds to wait before the next read."""
        self._journal.add_bytes(size)
        if self.used_up():
            self._counted()
        return self._pace.take(size) if self._pace.per_second else 0.0

    @property
    def held(self) -> str:
        """Return the daemon's reported reason for sending no orders; empty without one."""
        return self._asked.paused if self._attachment is not None else ""

    def most(self) -> int:
        """Return how many bytes of a relay to read at once at most."""
        most = READ_MAX_BYTES
        if self._pace.per_second:
            most = int(self._pace.per_second * PACE_BURST_SECONDS)
        daily, monthly = self._daily, self._own.bytes_per_month
        if daily:
            most = min(most, daily - self._journal.bytes_today)
        if monthly:
            most = min(most, monthly - self._journal.bytes_this_month)
        return max(most, READ_LEAST_BYTES)

    def _limit(self, limits: ServiceLimits) -> None:
        self._asked = limits
        self._daily = lesser(self._own.bytes_per_day, limits.bytes_per_day)
        self._pace.change(lesser(self._own.bytes_per_second, limits.bytes_per_second))

    # --- the daemon and its borrowers -------------------------------------------------------------

    def _attachments(self) -> list[_Attachment]:
        own = [] if self._attachment is None else [self._attachment]
        return [*own, *self._borrowers.values()]

    def _obey(self, frame: Frame, attachment: _Attachment) -> None:
        """Obey a frame of the daemon or of a borrower."""
        if isinstance(frame, Tickets):
            pool = attachment.pool_of(frame.first)
            if pool is not None:
                pool.add_tickets(frame.first, frame.tickets)
        elif isinstance(frame, Encrypt):
            attachment.wanted_secure = frame.connections
            if attachment.secure is not None:
                attachment.secure.park(0 if self.paused else frame.connections)
        elif isinstance(frame, Park):
            attachment.wanted = frame.connections
            attachment.pool.park(0 if self.paused else frame.connections)
        elif isinstance(frame, (Dial, Associate)):
            self._start(frame, attachment)

    def _lend(self, frame: Lend, home: _Attachment) -> str:
        """Begin to carry for a borrower; return the reason of a refusal in a word, or ""."""
        number = frame.number
        if number == _HOME or number in self._borrowers:
            raise FrameError("a loan with a number that it cannot have")
        if len(self._borrowers) >= self._bounds.borrowers_max:
            return "too_many"
        seconds = self._bounds.borrower_seconds
        borrower = Borrower(frame.host, frame.port, home.address, self._guard, self._loop, seconds)

        def connect(done: Connected) -> Attempt:
            return TaskAttempt(self._loop, borrower.connect(), done, close_spare)

        pool = Pool(
            frame.attachment,
            connect,
            room=self._room,
            lost=partial(self._work_is_lost, number),
            failed=partial(self._unreachable, number),
            relays=self._sockets,
            loop=self._loop,
        )
        self._borrowers[number] = home.lend(number, pool)
        return ""

    def _receive_for(self, frame: For) -> None:
        """Obey a frame of a borrower."""
        borrower = self._borrowers.get(frame.number)
        if borrower is None:  # it was given up just now
            return
        said = decode_whole(frame.frame)
        if isinstance(said, Ping):
            borrower.send(Pong(said.payload))
        elif said is not None:
            self._obey(said, borrower)

    def _unreachable(self, number: int) -> bool:
        """A borrower was not reached: the daemon ends the loan, and buyers go on elsewhere."""
        if self._attachment is not None and number in self._borrowers:
            self._attachment.send(Lent(number, "unreachable"))
            self._return(number)
        return False

    def _return(self, number: int) -> None:
        borrower = self._borrowers.pop(number, None)
        if borrower is None:
            return
        borrower.close()
        for key in tuple(self._held):
            if key[0] == number:
                self._drop(key)
        for (loan, _), order in tuple(self._dials.items()):
            if loan == number:
                order.cancel()

    # --- dials ------------------------------------------------------------------------------------

    def _permits_port(self, address: Address | None, port: int) -> bool:
        """The owner's ports and the daemon's; where the owner tries an exit out, the daemon's.

        No order leads to the service itself, which takes the address of a connection for the one of
        the device. The service has itself called by `Call`.
        """
        if self._asked.ports and port not in self._asked.ports:
            return False
        if address is None:
            return port in self._own.ports or self._guard.has_opened
        if (address, port) == self._door or self._denied.has(address, port):
            return False
        return port in self._own.ports or self._guard.is_opened(address)

    def _begin_call(self, frame: Call) -> None:
        """Call the daemon, so that it sees the public address of this device's connection."""
        if len(self._calls) >= CALLS_MAX or not self._permits_call(
            plain(frame.address), frame.port
        ):
            return
        task = self._loop.create_task(self._call(frame))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _permits_call(self, address: Address, port: int) -> bool:
        """Return whether a call may go to an address: the daemon's, or one outside of the home.

        A family whose public address is not known is no reason against it: the call finds that out.
        """
        if self._door is None or port != self._door[1]:
            return False
        return address == self._door[0] or self._guard.is_far(address, port)

    async def _call(self, frame: Call) -> None:
        with suppress(OSError):  # a daemon that is not called sees no address, and tells none
            sock = await connect(frame.address, frame.port, CONNECT_SECONDS)
            with sock:
                await self._loop.sock_sendall(sock, CALL + frame.number)
                closed = self._loop.create_task(self._loop.sock_recv(sock, 1))
                try:  # the daemon closes it
                    await asyncio.wait({closed}, timeout=CONNECT_SECONDS)
                finally:
                    closed.cancel()
                    with suppress(OSError, asyncio.CancelledError):
                        await closed

    def _start(self, frame: Dial | Associate, attachment: _Attachment) -> None:
        pool, key = attachment.pool_of(frame.number), (attachment.loan, frame.number)
        is_repeated = key in self._dials or key in self._held  # both would take one place
        work = None if pool is None or is_repeated else pool.take(frame.number)
        if work is None:
            attachment.fail(frame.number, DialOutcome.FAILED)
            return
        objection = self._objection(frame)
        if objection is None:
            self._begin(frame, work, attachment)
        elif objection is DialOutcome.AT_LIMIT and len(self._held) < HELD_MAX:
            timer = self._loop.call_later(PLACE_SECONDS, self._refuse_held, key)
            self._held[key] = _Held(frame, work, attachment, timer)
        else:
            attachment.refuse(frame.number, work, objection)

    def _objection(self, frame: Dial | Associate) -> DialOutcome | None:
        """Return why an order cannot be obeyed now; None if it can."""
        most = lesser(self._own.connections, self._asked.connections)
        if self.paused:
            return DialOutcome.PAUSED
        if isinstance(frame, Associate) and not self._own.udp:
            return DialOutcome.NOT_ALLOWED
        if most and self.connections >= most:
            return DialOutcome.AT_LIMIT
        if isinstance(frame, Associate) and self._has_all_associations:
            return DialOutcome.AT_LIMIT
        return None

    def _begin(self, frame: Dial | Associate, work: Work, attachment: _Attachment) -> None:
        """Obey an order."""
        order = _Order(self._cancel, frame, work, attachment)
        self._dials[order.key] = order
        if isinstance(frame, Dial):
            order.began = self._loop.time()
            order.attempt = self._dialer.begin(
                frame.host,
                frame.port,
                lambda address: self._permits_port(address, frame.port),
                partial(self._dialled, order),
            )
            return
        associating = self._associate(frame, work, attachment)
        begun = TaskAttempt(self._loop, associating, lambda _: self._end(order))
        self._tasks.add(begun.task)
        begun.task.add_done_callback(self._tasks.discard)
        order.attempt = begun

    def _begin_held(self) -> None:
        """Obey orders that wait for a place, the first come first, until all places are taken."""
        for key, held in tuple(self._held.items()):
            objection = self._objection(held.frame)
            if objection is DialOutcome.AT_LIMIT:
                continue
            del self._held[key]
            held.timer.cancel()
            if objection is None:
                self._begin(held.frame, held.work, held.attachment)
            else:
                held.attachment.refuse(held.frame.number, held.work, objection)

    def _refuse_held(self, key: tuple[int, int]) -> None:
        """No place has come free for an order in its time."""
        held = self._held.pop(key)
        held.attachment.refuse(held.frame.number, held.work, DialOutcome.AT_LIMIT)

    def _drop(self, key: tuple[int, int]) -> None:
        """Forget an order that waits for a place: the daemon has given it up."""
        held = self._held.pop(key)
        held.timer.cancel()
        held.work.reset()
        held.attachment.over(held.frame.number)

    def _dialled(self, order: _Order, outcome: Reached | DialOutcome) -> None:
        """A dial has ended: relay, or refuse the order."""
        order.micros = int((self._loop.time() - order.began) * 1_000_000)
        attachment, number, work = order.attachment, order.frame.number, order.work
        if not isinstance(outcome, Reached):
            attachment.refuse(number, work, outcome, order.micros)
            self._end(order)
            return
        sock = outcome.sock
        try:
            order.seen = attachment.seen_address(sock)
            order.attempt = self._join(order, outcome)
        except BaseException as error:
            sock.close()
            work.reset()
            if not isinstance(error, OSError):
                self._end(order)
                raise
            self._joined(order, error)  # the target has reset it since it connected
            return
        if order.attempt is None:
            self._joined(order, None)

    def _join(self, order: _Order, reached: Reached) -> Attempt | None:
        """Begin to relay between the work connection of an order and its target."""
        host, port = order.target
        noted = self._journal.add_target(host or reached.host, port)

        def began(relay: AnyRelay) -> None:
            self._relays[relay] = order.attachment, order.frame.number
            order.has_begun = True

        def said(data: bytes) -> None:
            noted.host = name_in(data) or noted.host

        return self._sockets.begin_join(
            order.work,
            reached.sock,
            meter=self,
            said=said,
            over=self._over,
            began=began,
            done=partial(self._joined, order),
        )

    def _joined(self, order: _Order, error: OSError | None) -> None:
        """Answer the order of a target that was reached; with an error, if it broke since then."""
        attachment, number = order.attachment, order.frame.number
        if error is not None:
            attachment.fail(number, outcome_of(error), order.micros)
        elif not order.work.is_lost:
            connected = DialOutcome.CONNECTED
            attachment.send(Dialled(number, connected, order.micros, *order.seen))
        self._end(order)

    def _cancel(self, order: _Order) -> None:
        """Give an order up."""
        if order.attempt is not None:
            order.attempt.cancel()
        order.work.reset()
        self._end(order, is_given_up=not order.has_begun)

    def _end(self, order: _Order, *, is_given_up: bool = False) -> None:
        """Forget an order that was answered or given up; its place may be free now."""
        if self._dials.get(order.key) is order:
            del self._dials[order.key]
        if is_given_up or order.work.is_lost:  # it may have ended without an answer
            order.attachment.over(order.frame.number)
        if self._held:
            self._begin_held()

    async def _associate(self, frame: Associate, work: Work, attachment: _Attachment) -> None:
        relay = DatagramRelay(
            permits=lambda address, port: (
                self._permits_port(address, port) and self._guard.permits(address, port)
            ),
            look_up=self._dialer.look_up,
            meter=self,
            noted=self._note_target,
            over=self._association_is_over,
            loop=self._loop,
            times=self._bounds.datagrams,
        )
        if self._has_all_associations:  # orders of one moment
            attachment.refuse(frame.number, work, DialOutcome.AT_LIMIT)
            return
        self._associations.add(relay)
        try:
            await relay.open()
            await self._sockets.hand_over(work, relay.work)
        except BaseException as error:
            relay.abort()
            work.reset()
            if isinstance(error, OSError):
                attachment.fail(frame.number, outcome_of(error))
                return
            raise
        if relay in self._associations:  # it may have ended already
            self._relays[relay] = attachment, frame.number
            attachment.send(Dialled(frame.number, DialOutcome.CONNECTED, 0, None, 0))

    @property
    def _has_all_associations(self) -> bool:
        return len(self._associations) >= self._bounds.associations_max

    def _association_is_over(self, relay: DatagramRelay) -> None:
        self._associations.discard(relay)
        self._over(relay)

    def _note_target(self, host: str, port: int) -> None:
        self._journal.add_target(host, port)

    def _over(self, relay: AnyRelay) -> None:
        if relay in self._relays:
            attachment, number = self._relays.pop(relay)
            attachment.over(number)
        if self._held:
            self._begin_held()
        if not self._relays and self._all_over is not None and not self._all_over.done():
            self._all_over.set_result(None)

    def _work_is_lost(self, loan: int, number: int) -> None:
        """Give up the order of a lost work connection.

        A relay of an earlier attachment may end now, whose number was the same.
        """
        key = loan, number
        held, order = self._held.get(key), self._dials.get(key)
        if held is not None and held.work.is_lost:
            self._drop(key)
        if order is not None and order.work.is_lost:
            order.cancel()


class _Held(NamedTuple):
    """An order that waits for a place."""

    frame: Dial | Associate
    work: Work
    attachment: _Attachment
    timer: asyncio.TimerHandle


class _Order:
    """An order that is obeyed: to connect to a target, or to carry datagrams.

    `key` is the number of the loan, and of the work connection. `micros` is how long its dial took,
    and `seen` the address and port that the target sees. `has_begun` says that its relay has begun,
    whose end is reported by itself.

    Args:
        given_up: called with the order that is cancelled.
    """

    __slots__ = (
        "_given_up",
        "attachment",
        "attempt",
        "began",
        "frame",
        "has_begun",
        "key",
        "micros",
        "seen",
        "work",
    )

    def __init__(
        self,
        given_up: Callable[[_Order], None],
        frame: Dial | Associate,
        work: Work,
        attachment: _Attachment,
    ) -> None:
        self._given_up = given_up
        self.frame = frame
        self.work = work
        self.attachment = attachment
        self.attempt: Attempt | None = None
        self.began = 0.0
        self.micros = 0
        self.seen: tuple[Address | None, int] = (None, 0)
        self.has_begun = False
        self.key = attachment.loan, frame.number

    @property
    def target(self) -> tuple[str, int]:
        """The name of the target, empty if the order has addresses, and the port."""
        assert isinstance(self.frame, Dial)  # noqa: S101 - only a dial has a target
        host = self.frame.host
        return host if isinstance(host, str) else "", self.frame.port

    def cancel(self) -> None:
        """See `Attempt.cancel`."""
        self._given_up(self)


class _Attachment:
    """State of one control connection, or of one loan.

    `secure` has the work connections that wait under TLS; there are none for borrowers.

    Args:
        loan: the number of the loan; `_HOME` for the daemon itself.
        address: where the daemon was reached.
        public: where the daemon sees this exit's connections come from.
    """

    def __init__(
        self,
        loan: int,
        pool: Pool,
        address: Address,
        public: str,
        send: Callable[[Frame], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loan = loan
        self.pool = pool
        self.address = address
        self.send = send
        self.wanted = self.wanted_secure = 0
        self.secure: Pool | None = None
        self._public = public
        self._seen: dict[str, Address | None] = {}  # by the text of an address of this device
        self._loop = loop
        self._leaving: set[Work] = set()

    def pools(self) -> list[tuple[Pool, int]]:
        """Return all pools, with how many connections shall wait in each."""
        secure = [] if self.secure is None else [(self.secure, self.wanted_secure)]
        return [(self.pool, self.wanted), *secure]

    def pool_of(self, number: int) -> Pool | None:
        """Return the pool in which the connection with this ticket's number waits."""
        return self.pool if number < SECURE_TICKETS else self.secure

    def lend(self, number: int, pool: Pool) -> _Attachment:
        """Return the state of a loan to a borrower, whose frames go through the daemon."""

        def send(frame: Frame) -> None:
            self.send(For(number, encode(frame)))

        return _Attachment(number, pool, self.address, self._public, send, self._loop)

    def refuse(self, number: int, work: Work, outcome: DialOutcome, micros: int = 0) -> None:
        """Report an order that failed, and leave its work connection to the daemon to close."""
        self.fail(number, outcome, micros)
        self._leaving.add(work)
        self._loop.call_later(FAILED_DIAL_SECONDS, self._close, work)

    def close(self) -> None:
        """Close everything that waits."""
        for pool, _ in self.pools():
            pool.close()
        for work in tuple(self._leaving):
            self._close(work)

    def _close(self, work: Work) -> None:
        self._leaving.discard(work)
        work.close()

    def fail(self, number: int, outcome: DialOutcome, micros: int = 0) -> None:
        """Report a dial that failed."""
        self.send(Dialled(number, outcome, micros, None, 0))

    def over(self, number: int) -> None:
        """Report that a connection is over; to the daemon alone, whose loans have no such frame."""
        if self.loan == _HOME:
            self.send(Over(number))

    def seen_address(self, sock: socket.socket) -> tuple[Address | None, int]:
        """Return the address and port that the target sees, unless a router changes them."""
        host, port = sock.getsockname()[:2]
        if host not in self._seen:
            if len(self._seen) >= OWN_ADDRESSES_KEPT:
                self._seen.clear()
            own = plain(ip_address(host.partition("%")[0]))
            is_seen = own.is_global or str(own) == self._public
            self._seen[host] = own if is_seen else None
        address = self._seen[host]
        return address, port if address is not None else 0
