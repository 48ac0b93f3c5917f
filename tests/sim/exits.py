"""Devices that attach as exits, and their owners: honest agents, and agents that cheat.

An agent speaks the frames of `proxyctl.protocol` over `lines`; the bytes of transfers are numbers
of `clients.Relay`, so a work connection carries only its preface, pages of canaries, and its end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from market.base.errors import MarketError
from market.exits.consents import ExitDeviceLimits
from proxyctl.protocol.frames import (
    CALL,
    CALLS,
    VERSION,
    Call,
    Capacity,
    Dial,
    Dialled,
    DialOutcome,
    Drain,
    ExitStatus,
    For,
    Frame,
    FrameReader,
    Hello,
    Lend,
    Lent,
    Over,
    Park,
    Ping,
    Pong,
    Preface,
    Return,
    Sorry,
    Tickets,
    Welcome,
    decode_whole,
    encode,
)
from tests.sim.clients import Network, RequestError
from tests.sim.exit_plans import ExitPlan, device_id_of, owner_of, token_of
from tests.sim.exit_ports import PAGES
from tests.sim.lines import HELLO, End, Lines, host_of

PARKED_MOST = 16
AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 0.02
HEARD_SECONDS = 7.0
_PAGE_OF = {page.split("/")[2]: f"page {page}".encode() for page in PAGES}
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"


@dataclass(slots=True)
class _Orders:
    """The agent's side of one daemon: its tickets, and its connections that wait or carry."""

    attachment: int
    host: str
    tickets: dict[int, bytes] = field(default_factory=dict)
    waiting: dict[int, End] = field(default_factory=dict)
    carrying: dict[int, End] = field(default_factory=dict)
    wanted: int = 0


class ExitAgent:
    """The agent of one device.

    Args:
        network: leads to the API.
        lines: lead to the ports for devices.
        plan: of the device.
        until: when it stops to misbehave.
        name: of it.
    """

    def __init__(
        self, network: Network, lines: Lines, plan: ExitPlan, until: float, name: str
    ) -> None:
        self.plan = plan
        self.name = name
        self.device_id = device_id_of(plan.number)
        self.is_attached = False
        self.refusal = ""
        self.is_stopped = False
        self._network = network
        self._lines = lines
        self._until = until
        self._loop: Any = None
        self._control: End | None = None
        self._reader = FrameReader()
        self._orders: dict[int, _Orders] = {}  # by the number of a loan; 0 is home
        self._number = plan.node
        self._tries = 0

    # --- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Attach again and again, until it is stopped."""
        plan, world = self.plan, self._network.world
        self._loop = asyncio.get_running_loop()
        await asyncio.sleep(plan.at + (1.0 if self.name.endswith("twin") else 0.0))
        if plan.silence is not None:
            begin, seconds = plan.silence
            self._lines.silences.append((f"{self.name} ", begin, min(begin + seconds, self._until)))
        for at in plan.breaks:
            world.at(at, self._break)
        if plan.rests is not None:
            world.at(plan.rests[0], self._say_later, ExitStatus("the owner is home"))
            world.at(sum(plan.rests), self._say_later, ExitStatus(""))
        while not self.is_stopped:
            over = self._loop.create_future()
            self._attach(over)
            retry = await over
            world.say(f"{self.name} detached {self.refusal}")
            await asyncio.sleep(max(AGAIN_SECONDS, min(retry, 2.0)))
            self._number += 1

    def stop(self) -> None:
        """Leave in order."""
        self.is_stopped = True
        self._break()

    def _break(self) -> None:
        if self._control is not None:
            self._loop.call_soon(self._lose, self._control)

    def _say_later(self, frame: Frame) -> None:
        self._loop.call_soon(self._say, frame)

    def _attach(self, over: "asyncio.Future[float]") -> None:
        plan = self.plan
        host = host_of(self._number % len(self._lines.processes))
        address = plan.addresses[self._tries % len(plan.addresses)]
        self._tries += 1
        self.refusal = ""
        self._reader = FrameReader()
        self._over = over
        end = self._control = self._lines.dial(self._loop, host, address, self.name)
        end.changed = lambda: self._received(end, host)
        end.send(HELLO)
        rests, now = plan.rests, self._network.world.now
        paused = rests is not None and rests[0] <= now < sum(rests)
        most = 0 if plan.kind == "full" else plan.limits.connections
        hello = Hello(
            VERSION,
            token_of(plan.number),
            "1",
            "sim",
            ("lend", "nodes", CALLS, "deny"),
            self._network.terms_hash,
            "the owner is home" if paused else "",
            Capacity(most, 0, (), 0),
        )
        end.send(encode(hello))
        if plan.kind == "garbage" and now < self._until:
            self._loop.call_later(1.0, end.send, b"\xff" * 40)
        self._heard_at = now
        self._loop.call_later(HEARD_SECONDS, self._look, end)

    def _look(self, end: End) -> None:
        """A daemon that is not heard is gone; a plain agent pings."""
        if self._control is end:
            if self._network.world.now - self._heard_at >= HEARD_SECONDS:
                self._lose(end)
            else:
                end.send(encode(Ping(b"12345678")))
                self._loop.call_later(HEARD_SECONDS / 2, self._look, end)

    def _lose(self, end: End, retry: float = 0.0) -> None:
        if self._control is not end:
            return
        end.close()
        self._control = None
        self.is_attached = False
        for number in tuple(self._orders):
            self._drop(number)
        if not self._over.done():
            self._over.set_result(retry)

    def _drop(self, number: int) -> None:
        orders = self._orders.pop(number, None)
        if orders is not None:
            for end in orders.waiting.values():
                end.close()
            # Transfers go on without the control connection, as long as the device is there.
            for end in orders.carrying.values():
                self._loop.call_later(0.5, end.close)

    def _say(self, frame: Frame, loan: int = 0) -> None:
        if self._control is not None:
            self._control.send(encode(For(loan, encode(frame)) if loan else frame))

    # --- frames of daemons -----------------------------------------------------------------------

    def _received(self, end: End, host: str) -> None:
        if self._control is not end:
            return
        self._heard_at = self._network.world.now
        data = bytes(end.received)
        end.received.clear()
        for frame in self._reader.receive_data(data):
            if self._control is end:
                self._act(frame, host, 0)
        if end.has_ended:
            self._lose(end)

    def _act(self, frame: Frame, host: str, loan: int) -> None:
        """Act on a frame of home, or of a borrower, by the number of the loan."""
        orders = self._orders.get(loan)
        if orders is not None and isinstance(frame, (Tickets, Park, Dial)):
            self._order(orders, frame, loan)
        elif isinstance(frame, Welcome):
            self._orders[0] = _Orders(frame.attachment, host)
            self.is_attached = True
            self._network.world.say(f"{self.name} attached to {host}")
            self._cheat_later()
        elif isinstance(frame, Sorry):
            self.refusal = frame.code
            assert self._control is not None
            self._lose(self._control, frame.retry_seconds)
        elif isinstance(frame, Ping):
            self._say(Pong(frame.payload), loan)
        elif isinstance(frame, (Lend, Return, For)):
            self._lend(frame, host)
        elif isinstance(frame, Call):
            self._call(frame)
        elif isinstance(frame, Drain):
            self._loop.call_later(0.3, self._break)

    def _lend(self, frame: Lend | Return | For, host: str) -> None:
        if isinstance(frame, Lend):
            self._orders[frame.number] = _Orders(frame.attachment, frame.host)
            self._say(Lent(frame.number, ""))
        elif isinstance(frame, Return):
            self._drop(frame.number)
        else:
            said = decode_whole(frame.frame)
            if said is not None and not isinstance(said, For):
                self._act(said, host, frame.number)

    def _order(self, orders: _Orders, frame: Tickets | Park | Dial, loan: int) -> None:
        if isinstance(frame, Dial):
            self._dial(orders, frame, loan)
            return
        if isinstance(frame, Tickets):
            orders.tickets.update(enumerate(frame.tickets, frame.first))
        else:
            orders.wanted = frame.connections
        self._park(orders, loan)

    def _call(self, frame: Call) -> None:
        plan = self.plan
        source = plan.leaves or plan.addresses[(self._tries - 1) % len(plan.addresses)]
        end = self._lines.dial(self._loop, str(frame.address), source, f"{self.name} call")
        end.send(CALL + frame.number)
        self._loop.call_later(1.0, end.close)

    # --- work connections ------------------------------------------------------------------------

    def _park(self, orders: _Orders, loan: int) -> None:
        """Open the connections that are to wait."""
        if self.plan.kind == "mute" and self._network.world.now < self._until:
            return
        while len(orders.waiting) < min(orders.wanted, PARKED_MOST) and orders.tickets:
            number = next(iter(orders.tickets))
            ticket = orders.tickets.pop(number)
            source = self.plan.addresses[(self._tries - 1) % len(self.plan.addresses)]
            end = self._lines.dial(self._loop, orders.host, source, f"{self.name} work")
            orders.waiting[number] = end
            end.changed = lambda number=number, end=end: self._worked(orders, number, end, loan)
            end.send(Preface(orders.attachment, number, ticket).encode())

    def _worked(self, orders: _Orders, number: int, end: End, loan: int) -> None:
        """Something came over a work connection: its end, or a request of the daemon's own."""
        if end.has_ended or end.is_closed:
            end.close()
            orders.waiting.pop(number, None)
            if orders.carrying.pop(number, None) is not None and not loan:
                self._say(Over(number))
            self._loop.call_later(ANSWER_SECONDS, self._park, orders, loan)

    def _dial(self, orders: _Orders, frame: Dial, loan: int) -> None:
        end = orders.waiting.pop(frame.number, None)
        self._loop.call_later(ANSWER_SECONDS, self._park, orders, loan)
        if end is None:
            return
        orders.carrying[frame.number] = end
        outcome, kind = DialOutcome.CONNECTED, self.plan.kind
        is_bad = self._network.world.now < self._until
        if kind == "refuses" and is_bad:
            outcome = DialOutcome.HOST_UNREACHABLE
        elif kind == "full" and is_bad:
            outcome = DialOutcome.AT_LIMIT
        elif kind == "mute" and is_bad:
            return
        host = str(frame.host[0]) if isinstance(frame.host, tuple) else frame.host
        if outcome is DialOutcome.CONNECTED and host in _PAGE_OF:
            serve(end, host, is_honest=kind != "page")
        self._loop.call_later(self.plan.dials, self._answer, orders, frame.number, outcome, loan)

    def _answer(self, orders: _Orders, number: int, outcome: DialOutcome, loan: int) -> None:
        end = orders.carrying.get(number)
        if end is None:
            return
        if outcome is not DialOutcome.CONNECTED:
            del orders.carrying[number]
            end.close()
        self._say(Dialled(number, outcome, 1000, None, 0), loan)
        if self.plan.kind == "drops" and self._network.world.now < self._until:
            self._loop.call_later(0.2, self._cut, orders, number)

    def _cut(self, orders: _Orders, number: int) -> None:
        end = orders.carrying.pop(number, None)
        if end is not None:
            end.close()
            self._say(Over(number))

    # --- an agent that cheats --------------------------------------------------------------------

    def _cheat_later(self) -> None:
        if self._network.world.now < self._until and self.plan.kind in ("unasked", "flood"):
            self._loop.call_later(1.5, self._cheat)

    def _cheat(self) -> None:
        if self.plan.kind == "unasked":
            self._say(Dialled(1 << 40, DialOutcome.CONNECTED, 1, None, 0))
        else:
            for _ in range(100):
                self._say(ExitStatus("again"))
                self._say(ExitStatus(""))


def serve(end: End, host: str, *, is_honest: bool) -> None:
    """Answer requests for a page over the other end of a line."""
    before = end.changed

    def changed() -> None:
        if end.received and b"\r\n\r\n" in end.received:
            end.received.clear()
            body = _PAGE_OF[host] if is_honest else b"buy here"
            end.send(_ANSWER % (len(body), body))
            end.close()
        before()

    end.changed = changed


class ExitOwner:
    """The owner of a device: consents, and changes it in the account.

    Args:
        network: leads to the API.
        plan: of the device.
        until: when the last acts are undone.
    """

    def __init__(self, network: Network, plan: ExitPlan, until: float) -> None:
        self.network = network
        self.plan = plan
        self.until = until
        # Since when nothing in the account stands against it; None while something does.
        self.agreed_at: float | None = None

    async def run(self) -> None:
        """Do all of it; the device may be an exit at the end, unless it is barred."""
        plan, world = self.plan, self.network.world
        await self._insist("consent")
        for at, what in plan.acts:
            await asyncio.sleep(max(0.0, at - world.now))
            await self._insist(what)
        await asyncio.sleep(max(0.0, self.until - world.now))
        await self._insist("consent")
        self.agreed_at = world.now

    async def _insist(self, what: str) -> None:
        network, number = self.network, self.plan.number
        make = self._request(what)
        while True:
            lives = [each.serving for each in network.processes if each.has_services]
            serving = [each for each in lives if each is not None and each.market is not None]
            if serving:
                life = serving[number % len(serving)]
                network.terms_hash = life.market.exits.terms_hash
                try:
                    await network.request(what, make, life)
                except RequestError as error:
                    network.world.say(f"owner{number} {what}: {error}")
                    if isinstance(error.__cause__, MarketError):
                        return
                else:
                    network.world.say(f"owner{number} {what}")
                    return
            number += 1
            await asyncio.sleep(0.2)

    def _request(self, what: str) -> Callable[[Any], Any]:
        owner, device = owner_of(self.plan.number), device_id_of(self.plan.number)
        limits = self.plan.limits

        async def make(market: Any) -> None:
            exits = market.exits
            if what == "consent":
                await exits.consent(owner, device, exits.terms_hash, limits)
            elif what == "limits":
                less = ExitDeviceLimits(1, 200_000, limits.bytes_per_day, limits.ports)
                await exits.change_limits(owner, device, less)
            else:
                await getattr(exits, what)(owner, device)

        return make
