"""Connections of the house's own through one exit: no buyer pays for them, and no owner is paid."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, final

from market.base.networks import Address
from proxyctl.protocol.frames import DialOutcome
from proxyctl.protocol.policy import Policy
from proxyd.counters import ExitCounters
from proxyd.egress.lookup import known
from proxyd.egress.resolve import LookupFailedError, NameNotFoundError, Resolver
from proxyd.exits.attached.attached import Attached
from proxyd.exits.choosing.entries import Missing
from proxyd.exits.dialling.dial import Exits, Via
from proxyd.loop.reactor import Reactor, for_loop
from proxyd.wire.events import Failure
from proxyd.wire.hosts import address_of
from proxyd.wire.wants import Wants

DIAL_SECONDS: Final = 10.0


class Unknown(Exception):  # noqa: N818 - nobody is at fault
    """The errand has no result; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Parts that connections need: the sockets of the loop, the resolver of names, and the policy.

    With `encrypts_all` they are under TLS, as buyers' are.
    """

    reactor: Reactor
    resolver: Resolver
    policy: Policy
    encrypts_all: bool = False

    async def addresses(self, host: str) -> list[Address]:
        """Return the addresses of a host: of a name, or the address itself.

        Raises:
            OSError: it cannot be looked up.
        """
        try:
            return [address_of(host)]
        except ValueError:
            pass
        try:
            answer = known(self.resolver, host)
            return answer if isinstance(answer, list) else await self.resolver.resolve(host)
        except (NameNotFoundError, LookupFailedError) as error:
            raise OSError(f"{host} cannot be looked up") from error

    async def dial(
        self,
        attached: Attached,
        host: Address | str,
        port: int,
        *,
        dns_at_exit: bool = False,
        secure: bool = False,
    ) -> socket.socket:
        """Return a connection to a target through an exit, the caller's from here on.

        Args:
            attached: the exit.
            host: an address, or a name.
            port: the target's, also one that the owner does not allow: this is not checked here.
            dns_at_exit: whether the exit looks the name up.
            secure: whether it is to be under TLS on the way to the exit, where not all are.

        Raises:
            Unknown: the exit has not connected.
        """
        reactor, secure = self.reactor, secure or self.encrypts_all
        if secure and attached.secure is None:
            raise Unknown("its program has no connections under TLS")
        future: asyncio.Future[socket.SocketType | Failure] = reactor.loop.create_future()

        def done(outcome: socket.SocketType | Failure, _unread: bool, _via: Via | None) -> None:
            if not future.done():
                future.set_result(outcome)
            elif isinstance(outcome, socket.SocketType):
                reactor.poller.forget(outcome.fileno())
                outcome.close()

        exits = Exits(
            reactor,
            _Only(attached),
            self.resolver,
            self.policy,
            DIAL_SECONDS,
            ExitCounters(),
        )
        wants = Wants(dns_at_exit=dns_at_exit, secure=secure)
        dial = exits.dial(wants, _House(), host, port, done)
        try:
            outcome = await future
        except asyncio.CancelledError:
            dial.cancel()
            if future.done() and not future.cancelled():
                done(future.result(), False, None)
            raise
        finally:
            exits.close()
        if isinstance(outcome, Failure):
            raise Unknown(f"{host} port {port} is not reached: {outcome.name.lower()}")
        reactor.poller.release(outcome.fileno())
        return for_loop(outcome)


@final
class Errand:
    """Connection of the house, counted among the exit's relays; its bytes belong to no session.

    Args:
        task: is cancelled when the exit is cut.
    """

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = task

    @property
    def traffic(self) -> tuple[int, int]:
        """See `Carried.traffic`."""
        return 0, 0

    def yields_at(self) -> float:
        """See `Carried.yields_at`: it is short, and has its own bound."""
        return inf

    def abort(self) -> None:
        """See `Carried.abort`: the outcome of such an errand proves nothing."""
        self._task.cancel()


@final
class _Only:
    """A `Chooser` of one exit."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def pick(
        self,
        wants: Wants,  # noqa: ARG002 - there is one
        *,
        session_id: str,  # noqa: ARG002
        owner_id: str,  # noqa: ARG002
        price_per_gb: int,  # noqa: ARG002
        target: str,  # noqa: ARG002
        tried: Sequence[str],
        now: float,  # noqa: ARG002
        features: frozenset[str],  # noqa: ARG002
        port: int,  # noqa: ARG002
    ) -> Attached | Missing:
        """See `Chooser.pick`."""
        attached = self._attached
        is_out = attached.is_gone or attached.device_id in tried
        return Missing.NO_EXIT if is_out else attached

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
        """See `Chooser.note`: the service's own connections do not show the success of buyers."""

    def contradict(self, entry: Attached, now: float, *, buyer: str, target: str) -> None:
        """See `Chooser.contradict`."""

    def suspect(self, entry: Attached, now: float, *, buyer: str, target: str) -> None:
        """See `Chooser.suspect`."""

    def prove(self, entry: Attached, now: float, *, target: str) -> None:
        """See `Chooser.prove`."""

    def doubts(self, entry: Attached) -> bool:  # noqa: ARG002 - there is no other one
        """See `Chooser.doubts`."""
        return False

    def take_move(self, _wants: Wants, _session_id: str) -> bool:
        """See `Chooser.take_move`."""
        return False


@dataclass(frozen=True, slots=True)
class _House:
    """A `Buyer` that pays nothing, and owns no device."""

    id: str = "the house"
    user_id: str = ""
    price_per_gb: int = 0
