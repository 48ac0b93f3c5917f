"""The control connection of an exit: frames over TLS, as long as it is attached.

Theory of operation
-------------------
An exit says hello, and the marketplace says whether it may attach. From then on orders go out and
answers come in. A worker also says hello, and a work connection sends its preface instead; both
are handed over. `TRANSITIONS` has the arrows:

    SILENT -> GREETING -> ASKED -> ATTACHED -> CLOSED -> OVER
           -> PREFACE  -> ASKED                           (handed over: OVER at once)

The action of a frame depends on the state: `_ACTIONS` has the frames that are allowed in each. Any
other frame ends the connection.

Frames of one turn of the loop leave together, in one record of TLS: a burst of clients gives many
orders in a turn.

The bytes of a client are bounded: it pays for them out of an allowance that grows with time, and
with each order that it gets.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol, cast, final

from market.base.errors import MarketError
from market.exits.consents import ExitGrant, Exits
from proxyctl.protocol.frames import (
    PREFACE,
    WORK,
    Associate,
    Dial,
    Dialled,
    Drain,
    ExitStatus,
    For,
    Frame,
    FrameError,
    Hello,
    Lend,
    Lent,
    Over,
    Ping,
    Pong,
    Preface,
    Sorry,
    Tunnel,
    encode,
)
from proxyd.counters import ExitCounters
from proxyd.exits.attached.allowance import Allowance
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.attached.quick_frames import QuickReader, encode_dial
from proxyd.wire.links import is_link
from storage.engines.errors import StoreError, level_of

# An answer to an order has 37 at most, one to a ping 11, and 11 more on its way to a borrower; to a
# loan there may be two.
ANSWER_BYTES: Final = 64
# A change of its state removes it from the directory or files it again: with 100,000 exits that is
# a quarter of a millisecond. A device looks at itself once a second.
STATE_BYTES: Final = 1024
GOODBYE_SECONDS: Final = 5.0  # to take the last words
OLDEST_PROTOCOL: Final = 1
AGAIN_SECONDS: Final = 60  # for a temporary reason: it may try again then
SOON_SECONDS: Final = 5
PAUSED: Final = "exit_paused"
# How much more an exit may send for a frame that it has to answer.
_ANSWERS: Final = {
    Dial: ANSWER_BYTES,
    Associate: ANSWER_BYTES,
    Ping: ANSWER_BYTES,
    For: ANSWER_BYTES,
    Lend: 2 * ANSWER_BYTES,
}

_logger = logging.getLogger("exits")


class Members(Protocol):
    """Attaches and detaches exits, on behalf of their control connections."""

    def attach(self, control: "Control", grant: ExitGrant, hello: Hello) -> None:
        """Attach an exit, or refuse it by `Control.refuse`."""

    def lost(self, attached: Attached, reason: str) -> None:
        """Act on the end of a control connection: its exit is gone."""

    def paused(self, attached: Attached, words: str) -> None:
        """Pause an exit, or let it take connections again."""

    def changed(self, attached: Attached, grant: ExitGrant) -> None:
        """Apply the present grant of an exit."""

    def suspected(self, attached: Attached, kind: str, evidence: str) -> None:
        """Pass on an act of an exit that is not honest: its kind and the evidence."""


class Holder(Protocol):
    """Registry of the open control connections."""

    def known(self, control: "Control") -> None:
        """Stop counting a connection as a stranger: it has attached."""

    def over(self, control: "Control") -> None:
        """Forget a connection that is over; called once."""


@dataclass(frozen=True, slots=True)
class ControlBounds:
    """The bounds on the agent of an exit.

    Attributes:
        hello_seconds: to say hello, and to be taken: many round trips, and a busy store.
        waiting_max_bytes: of frames for an exit that does not read: hundreds of orders, which it
            will never obey in time.
    """

    hello_seconds: float = 10.0
    waiting_max_bytes: int = 256 * 1024


USUAL: Final = ControlBounds()


@dataclass(frozen=True, slots=True)
class ControlServices:
    """Collaborators of all control connections.

    `counters` count refusals. `spawn` runs a task that is ended with the listener. `admit`
    takes over a work connection under TLS, with the bytes behind its preface. `tunnel` takes a
    worker in, or refuses it. `welcome` takes the connection of another node over, with its first
    bytes, or returns False for another client. `bounds` are those on an agent.
    """

    loop: asyncio.AbstractEventLoop
    authority: Exits
    members: Members
    counters: ExitCounters
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    loaner: Loaner
    admit: Callable[["Control", Preface, bytes], None]
    tunnel: Callable[["Control", Tunnel], None]
    welcome: Callable[[asyncio.Transport, bytes], bool]
    bounds: ControlBounds = USUAL


class ControlState(IntEnum):
    """State of a control connection.

    SILENT: nothing has come. PREFACE: it is a work connection, and a part of its preface is
    missing. GREETING: it sends frames, and has not said hello. ASKED: it has said everything, and
    is looked up. ATTACHED: its exit is attached. CLOSED: it was let go of, and its last words may
    still go out. OVER: its socket is closed, or handed over.
    """

    SILENT = 0
    PREFACE = 1
    GREETING = 2
    ASKED = 3
    ATTACHED = 4
    CLOSED = 5
    OVER = 6


TRANSITIONS: Final = {
    ControlState.SILENT: (ControlState.PREFACE, ControlState.GREETING, ControlState.CLOSED),
    ControlState.PREFACE: (ControlState.ASKED, ControlState.CLOSED),
    ControlState.GREETING: (ControlState.ASKED, ControlState.CLOSED),
    ControlState.ASKED: (ControlState.ATTACHED, ControlState.CLOSED, ControlState.OVER),
    ControlState.ATTACHED: (ControlState.CLOSED,),
    ControlState.CLOSED: (ControlState.OVER,),
    ControlState.OVER: (),
}

# Names of this module: the attribute of an enumeration is six times slower (3.11).
_SILENT: Final = ControlState.SILENT
_PREFACE: Final = ControlState.PREFACE
_GREETING: Final = ControlState.GREETING
_ASKED: Final = ControlState.ASKED
_ATTACHED: Final = ControlState.ATTACHED
_CLOSED: Final = ControlState.CLOSED
_OVER: Final = ControlState.OVER


@final
class Control:
    """One control connection, an `asyncio.Protocol` (a compiled class cannot inherit from one).

    `attached` is set while its exit is attached. `began` is when it came (loop time, seconds).
    """

    __slots__ = (
        "_allowance",
        "_beginning",
        "_holder",
        "_reader",
        "_services",
        "_state",
        "_timer",
        "_transport",
        "_unsent",
        "address",
        "attached",
        "began",
    )

    def __init__(self, services: ControlServices, address: str, holder: Holder) -> None:
        self._services = services
        self._holder = holder
        self._state = _SILENT
        self._reader = QuickReader()
        self._beginning = b""  # of the preface of a work connection
        self._allowance = Allowance(services.loop.time())
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = b""
        self.address = address
        self.attached: Attached | None = None
        self.began = self._allowance.paid_at

    @property
    def bounds(self) -> ControlBounds:
        """The bounds on the device."""
        return self._services.bounds

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed, or handed over."""
        return self._state >= _CLOSED

    @property
    def is_over(self) -> bool:
        """Whether its socket is closed, or handed over."""
        return self._state is _OVER

    def _to(self, state: ControlState) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half a connection helps nobody
        self._state = state

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's inherits from nothing
        seconds = self._services.bounds.hello_seconds
        self._timer = self._services.loop.call_later(seconds, self.cut, "silent")

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._state is _SILENT and data[:1] != WORK and is_link(data):
            self._become_link(data)
            return
        if self.is_closed or not self._pay(len(data)):
            return
        if self._state is _SILENT:
            self._to(_PREFACE if data[:1] == WORK else _GREETING)
        if self._state is _PREFACE:
            self._read_preface(data)
            return
        if self.attached is not None:
            self.attached.pulse.hear(self._allowance.paid_at)
        reader = self._reader
        reader.receive_data(data)
        try:
            while (frame := reader.next_frame()) is not None:
                self._act(frame)
                if self._state >= _CLOSED:
                    return
        except FrameError as error:
            _logger.info("exit at %s: cut: it has sent %s", self.address, error)
            self.cut("violation")

    def _pay(self, size: int) -> bool:
        """Subtract a size from the allowance; cut the connection and return False below zero."""
        if self._allowance.pay(size, self._services.loop.time()):
            return True
        self.cut("flood")
        return False

    def _read_preface(self, data: bytes) -> None:
        """Read the preface of a work connection, which is handed over or cut then."""
        self._beginning += data
        if len(self._beginning) >= PREFACE.size:
            self._to(_ASKED)
            preface, rest = self._beginning[: PREFACE.size], self._beginning[PREFACE.size :]
            self._services.admit(self, Preface.decode(preface), rest)

    def _become_link(self, data: bytes) -> None:
        """Hand over the connection of another node, or of a client that claims to be one."""
        transport = self._transport
        if transport is None:
            return
        if not self._services.welcome(transport, data):
            _logger.warning("exit at %s: cut: it is no node of this service", self.address)
            self.cut("not a node")
            return
        self._close("a node")
        self._end()

    def hand_over(self) -> asyncio.Transport:
        """Return its transport, which the caller owns from here on; this connection is over."""
        assert self._transport is not None  # noqa: S101 - it has received something
        self._flush()
        transport, self._transport = self._transport, None
        self._stop_timer()
        self._end()
        return transport

    def eof_received(self) -> None:
        """See `asyncio.Protocol`: its transport closes now."""

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: `_flush` bounds what waits."""

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.is_over:  # or it was handed over, and is lost before it has its new protocol
            self._close("lost")
            self._end()

    def _end(self) -> None:
        """Stop counting the connection: its socket is closed, or handed over."""
        self._to(_OVER)
        self._holder.over(self)

    def send(self, frame: Frame) -> None:
        """Send a frame, with the others of this turn."""
        transport = self._transport
        if self.is_closed or transport is None:
            return
        self._allowance.grant(_ANSWERS.get(type(frame), 0))
        data = encode_dial(frame) if isinstance(frame, Dial) else encode(frame)
        if not self._unsent:
            self._services.loop.call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        """Send the frames of this turn; an exit that does not read is cut."""
        data, self._unsent = self._unsent, b""
        transport = self._transport
        if not data or self.is_closed or transport is None:
            return
        transport.write(data)
        if transport.get_write_buffer_size() > self._services.bounds.waiting_max_bytes:
            self.cut("does not read")

    def refuse(self, code: str, words: str, retry_seconds: int) -> None:
        """Send the reason why it is not attached, or not any more, and close.

        Args:
            code: the stable code.
            words: the reason for its owner.
            retry_seconds: the time before a new attempt; 0 if no attempt helps before a change.
        """
        if self.is_closed:
            return
        if self.attached is None:
            self._services.counters.refused[code] += 1
        self.send(Sorry(code, words, retry_seconds))
        self._flush()
        transport = self._transport
        self._close(code)
        if transport is not None:
            transport.close()
            self._timer = self._services.loop.call_later(GOODBYE_SECONDS, transport.abort)

    def cut(self, reason: str) -> None:
        """Close without a last frame."""
        if self.is_closed:
            return
        if self.attached is None:
            self._services.counters.refused[reason] += 1
        self._close(reason)
        if self._transport is not None:
            self._transport.abort()

    def abort(self, reason: str) -> None:
        """Close immediately, even if the device has not read the reason of a refusal."""
        self.cut(reason)
        if self._transport is not None:
            self._transport.abort()

    def drain(self, seconds: int) -> None:
        """Notify the device that the daemon stops."""
        self.send(Drain(seconds))

    def check_again(self) -> None:
        """Ask the marketplace again for the permission of the exit."""
        if self.attached is not None:
            self._services.spawn(self._check(self.attached))

    def accepted(self, attached: Attached) -> None:
        """Bind the connection to its exit, whose hello has come in time."""
        self._stop_timer()
        self._to(_ATTACHED)
        self.attached = attached
        self._holder.known(self)

    # --- actions of frames ---------------------------------------------------------------------

    def _act(self, frame: Frame) -> None:
        if self._state is _ATTACHED and isinstance(frame, Dialled):  # half of all frames
            self._on_dialled(frame)
            return
        action = _ACTIONS[self._state].get(type(frame))
        if action is not None:
            action(self, frame)
        elif self._state is _ATTACHED:
            raise FrameError(f"a frame of the type {type(frame).__name__}, which is the daemon's")
        else:
            raise FrameError("a frame other than one hello before the attachment")

    def _on_ping(self, frame: Ping) -> None:
        self.send(Pong(frame.payload))

    def _on_hello(self, frame: Hello) -> None:
        self._to(_ASKED)
        self._services.spawn(self._authorize(frame))

    def _on_tunnel(self, frame: Tunnel) -> None:
        self._to(_ASKED)
        self._services.tunnel(self, frame)

    def _on_dialled(self, frame: Dialled) -> None:
        """Handle the outcome of an order; an outcome for an unknown order is a lie."""
        attached = self._exit
        if not attached.answered(frame) and not attached.agent.has_ordered(frame.number):
            words = f"{frame.outcome.name} for {frame.number}, which has no order"
            self._services.members.suspected(attached, "unasked", words)

    def _on_over(self, frame: Over) -> None:
        self._exit.places.over(frame.number)

    def _on_pong(self, frame: Pong) -> None:
        self._exit.ponged(frame.payload)

    def _on_loan(self, frame: For | Lent) -> None:
        self._services.loaner.agent_said(self._exit, frame)

    def _on_state(self, frame: ExitStatus) -> None:
        if not self._allowance.charge(STATE_BYTES):
            self.cut("flood")
        else:
            self._services.members.paused(self._exit, frame.paused)

    @property
    def _exit(self) -> Attached:
        """Its exit, while that is attached."""
        assert self.attached is not None  # noqa: S101 - the state says so
        return self.attached

    # --- answers of the marketplace ------------------------------------------------------------

    async def _authorize(self, hello: Hello) -> None:
        """Ask whether the exit may attach, and attach it."""
        if hello.protocol < OLDEST_PROTOCOL:
            self.refuse("version_too_old", "This program is too old for the service; update it.", 0)
            return
        grant = await self._granted(self._services.authority.authorize(hello.token, hello.terms))
        if grant is not None and not self.is_closed:
            self._services.members.attach(self, grant, hello)

    async def _check(self, attached: Attached) -> None:
        """Check the permission again; detach an exit without permission, and cut its relays."""
        grant = await self._granted(self._services.authority.current(attached.device_id))
        if grant is not None and not self.is_closed:
            self._services.members.changed(attached, grant)

    async def _granted(self, answer: Coroutine[Any, Any, ExitGrant]) -> ExitGrant | None:
        """Return the marketplace's grant, or refuse and return None."""
        try:
            return await answer
        except MarketError as error:
            word = error.code.word
            self.refuse(word, error.message, AGAIN_SECONDS if word == PAUSED else 0)
        except StoreError as error:
            _logger.log(
                level_of(error, logging.WARNING),
                "exit at %s: cannot be looked up now: %s",
                self.address,
                error,
            )
            if self.attached is None:
                words = "The service cannot look this device up right now."
                self.refuse("unavailable", words, SOON_SECONDS)
        return None

    def _close(self, reason: str) -> None:
        """Release the exit; only the first call counts."""
        self._stop_timer()
        if self.is_closed:
            return
        self._to(_CLOSED)
        attached, self.attached = self.attached, None
        if attached is not None:
            self._services.members.lost(attached, reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# The action for each frame, by the state; pings are answered as soon as frames are read.
_ACTIONS: Final[dict[ControlState, dict[type[Frame], Callable[[Control, Any], None]]]] = {
    ControlState.GREETING: {
        Ping: Control._on_ping,
        Hello: Control._on_hello,
        Tunnel: Control._on_tunnel,
    },
    ControlState.ASKED: {Ping: Control._on_ping},
    ControlState.ATTACHED: {
        Ping: Control._on_ping,
        Dialled: Control._on_dialled,
        Over: Control._on_over,
        Pong: Control._on_pong,
        For: Control._on_loan,
        Lent: Control._on_loan,
        ExitStatus: Control._on_state,
    },
}
