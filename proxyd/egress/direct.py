"""Connects to a target: looks it up, asks the policy about every address, races those permitted.

The race is RFC 8305's: another candidate begins when the one before has failed or has not answered
for a moment, and the first to connect wins. No coroutine is spent on a target that is given as an
address, or by a name that is known; another name costs one, for its look-up.

IPv6 and IPv4 addresses alternate. The next attempt begins after 250 ms or after a failure, and six
addresses at most are tried. The proxy dials the same address that the policy has judged. If all
attempts fail, the client gets the failure that came furthest (`MOST_TELLING`).
"""

import errno
import logging
import socket
from collections.abc import Callable, Hashable
from functools import lru_cache
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final, final

from market.base.networks import Address
from proxyctl.protocol.policy import Policy
from proxyd.egress.candidates import candidates
from proxyd.egress.exit import Cancellable, Done, Exit
from proxyd.egress.lookup import Answer, Lookup, known
from proxyd.egress.resolve import Resolver
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.poller import GONE, READS, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.wire.events import Failure

if TYPE_CHECKING:
    import asyncio

STAGGER_SECONDS: Final = 0.25  # RFC 8305, section 8: the recommended delay between attempts
ADDRESSES_KEPT: Final = 4096  # in text; as many as the policy keeps verdicts of
RACERS_MAX: Final = 1_000  # unless the operator's descriptors say otherwise; see `limits`

FAILURE_OF_ERRNO: Final = {
    errno.ENETUNREACH: Failure.NETWORK_UNREACHABLE,
    errno.ENETDOWN: Failure.NETWORK_UNREACHABLE,
    errno.EAFNOSUPPORT: Failure.NETWORK_UNREACHABLE,
    errno.EHOSTUNREACH: Failure.HOST_UNREACHABLE,
    errno.EHOSTDOWN: Failure.HOST_UNREACHABLE,
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ECONNRESET: Failure.REFUSED,
    errno.ETIMEDOUT: Failure.TIMED_OUT,
    errno.EACCES: Failure.NOT_ALLOWED,
    errno.EPERM: Failure.NOT_ALLOWED,
}

# When every candidate failed, the one that came furthest is reported: the target itself said no,
# silence after the attempt, a refusal by a router, no route, this machine's own rules, this
# machine.
MOST_TELLING: Final = (
    Failure.REFUSED,
    Failure.TIMED_OUT,
    Failure.HOST_UNREACHABLE,
    Failure.NETWORK_UNREACHABLE,
    Failure.NOT_ALLOWED,
    Failure.GENERAL,
)

_LEAST_TELLING: Final = MOST_TELLING[-1]
_logger = logging.getLogger("egress")
# Names of this module: looking them up in another costs more than the rest of their use.
_NONBLOCKING_STREAM: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_AF_INET: Final = int(socket.AF_INET)
_AF_INET6: Final = int(socket.AF_INET6)
_SOL_SOCKET: Final = socket.SOL_SOCKET
_SO_ERROR: Final = socket.SO_ERROR
_SO_OOBINLINE: Final = socket.SO_OOBINLINE
_IPPROTO_TCP: Final = socket.IPPROTO_TCP
_TCP_NODELAY: Final = socket.TCP_NODELAY
_EINPROGRESS: Final = errno.EINPROGRESS


@lru_cache(maxsize=ADDRESSES_KEPT)
def _ipv4_text(number: int) -> str:
    """Return an IPv4 address in text, as `str` does; frequent targets come from a cache."""
    return str(IPv4Address(number))


@final
class DirectExit(Exit):
    """The way out from this machine itself.

    Args:
        reactor: the resources that the sockets of the loop share; a connected socket stays watched.
        seconds: how long a dial may take in all.
        racers_max: how many sockets may connect beside the first one of their dial; when that
            number is reached, the next candidate of a dial takes the place of the one before.
        new_socket: makes a socket of a family and a kind.
    """

    __slots__ = (
        "deadlines",
        "new_socket",
        "policy",
        "racers",
        "racers_max",
        "reactor",
        "resolver",
        "seconds",
    )

    def __init__(
        self,
        reactor: Reactor,
        resolver: Resolver,
        policy: Policy,
        seconds: float,
        racers_max: int = RACERS_MAX,
        *,
        new_socket: Callable[[int, int], socket.SocketType] = socket.SocketType,
    ) -> None:
        self.reactor = reactor
        self.resolver = resolver
        self.policy = policy
        self.seconds = seconds
        self.racers_max = racers_max
        self.racers = 0
        self.new_socket = new_socket
        self.deadlines: Deadlines[Dial] = Deadlines(reactor.loop, seconds)

    def dial(self, host: Address | str, port: int, asker: Hashable, done: Done) -> "Dial":
        """See `Exit.dial`."""
        dial = Dial(self, port, asker, done)
        try:
            dial.start(host)
        except BaseException:  # the caller has nothing yet that it could cancel
            dial.cancel()
            raise
        return dial

    def change_seconds(self, seconds: float) -> None:
        """See `Exit.change_seconds`."""
        self.deadlines.seconds = self.seconds = seconds

    def close(self) -> None:
        """Stop watching deadlines."""
        self.deadlines.close()


@final
class Dial(Cancellable, Expiring):
    """One dial of a target.

    Args:
        asker: the network whose look-ups are counted, if several compete.
        done: called with the outcome, perhaps before `start` returns; never after `cancel`.
    """

    __slots__ = (
        "_asker",
        "_attempts",
        "_done",
        "_exit",
        "_failure",
        "_lookup",
        "_port",
        "_stagger",
        "_started_at",
        "_waiting",
    )

    def __init__(self, exit_: DirectExit, port: int, asker: Hashable, done: Done) -> None:
        self._exit = exit_
        self._asker = asker
        self._done: Done | None = done
        self._stagger: asyncio.TimerHandle | None = None
        self._lookup: Lookup | None = None
        self._attempts: dict[_Attempt, None] = {}
        self._waiting: list[Address] = []
        self._failure = _LEAST_TELLING
        self._port = port
        self._started_at = 0.0

    def start(self, host: Address | str) -> None:
        """Begin. A name that is not known is looked up first."""
        if isinstance(host, str):
            self._started_at = self._exit.reactor.loop.time()
            self._look_up(host)
        elif not self._exit.policy.permits(host, self._port):
            self._finish(Failure.NOT_ALLOWED)
        elif not self._attempt(host):
            self._finish(self._failure)

    def cancel(self) -> None:
        """Cancel the dial, without calling `done`."""
        self._done = None
        self._release()

    def _look_up(self, name: str) -> None:
        exit_ = self._exit
        answer = known(exit_.resolver, name)
        if answer is not None:
            self._looked_up(answer)
            return
        exit_.deadlines.add(self)
        self._lookup = Lookup(
            exit_.reactor.loop, exit_.resolver, name, self._asker, self._looked_up
        )

    def _looked_up(self, answer: Answer) -> None:
        self._lookup = None
        if isinstance(answer, Failure):
            self._finish(answer)
        else:
            self._race(answer)

    def _race(self, addresses: list[Address]) -> None:
        self._waiting = candidates(addresses, self._port, self._exit.policy)
        self._waiting.reverse()
        if self._waiting:
            self._next()
        else:
            self._finish(Failure.NOT_ALLOWED)

    def _next(self) -> None:
        """Begin with the next candidate; another one follows if this one takes long."""
        while self._waiting:
            if self._attempts and self._exit.racers >= self._exit.racers_max:
                self._let_go(next(iter(self._attempts)))
                self._note(errno.ETIMEDOUT)
            if self._attempt(self._waiting.pop()):
                if self._waiting:
                    loop = self._exit.reactor.loop
                    left = max(self._started_at + self._exit.seconds - loop.time(), 0)
                    pause = min(STAGGER_SECONDS, left / (1 + len(self._waiting)))
                    self._stagger = loop.call_later(pause, self._next)
                return
        if not self._attempts:
            self._finish(self._failure)

    def _attempt(self, address: Address) -> bool:
        """Begin to connect; return False if that fails immediately."""
        if isinstance(address, IPv4Address):
            family, host = _AF_INET, _ipv4_text(int(address))
        else:
            family, host = _AF_INET6, str(address)
        try:
            sock = self._exit.new_socket(family, _NONBLOCKING_STREAM)
        except OSError as error:
            self._note(error.errno)
            return False
        try:
            sock.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
            sock.setsockopt(_SOL_SOCKET, _SO_OOBINLINE, 1)  # or a byte is left out
            code = sock.connect_ex((host, self._port))
        except OSError as error:
            code = error.errno or errno.EIO
        except (TypeError, ValueError):  # an address that no system call takes
            code = errno.EINVAL
        if code == _EINPROGRESS:
            self._watch(sock)
            return True
        if code == 0:
            self._finish(sock)
            return True
        sock.close()
        self._note(code)
        return False

    def _watch(self, sock: socket.SocketType) -> None:
        self._exit.deadlines.add(self)
        attempt = _Attempt(self, sock)
        self._exit.racers += bool(self._attempts)
        self._attempts[attempt] = None
        self._exit.reactor.poller.watch(sock.fileno(), attempt, writes=True)

    def connected(self, attempt: "_Attempt", events: int) -> None:
        """End the dial with the socket of an attempt, or begin the next attempt after a failure."""
        sock = attempt.sock
        # epoll(7) reports a failure as an error event, so success needs no query.
        code = sock.getsockopt(_SOL_SOCKET, _SO_ERROR) if events & GONE else 0
        if code == 0:
            self._leave(attempt)
            self._finish(sock, is_unread=bool(events & READS))
            return
        self._let_go(attempt)
        self._note(code)
        if self._stagger is not None:
            self._stagger.cancel()
        self._next()

    def timed_out(self) -> None:
        """Fail the dial: its time is over."""
        self._note(errno.ETIMEDOUT)
        self._finish(self._failure)

    def fail(self, error: Exception) -> None:
        """Fail because of a fault in this program, and log the traceback."""
        _logger.error("dialling failed", exc_info=error)
        self._finish(Failure.GENERAL)

    def _note(self, code: int | None) -> None:
        """Remember a failure, unless a more significant one is remembered already."""
        failure = FAILURE_OF_ERRNO.get(code or 0, Failure.GENERAL)
        if MOST_TELLING.index(failure) < MOST_TELLING.index(self._failure):
            self._failure = failure

    def _finish(self, outcome: socket.SocketType | Failure, *, is_unread: bool = False) -> None:
        done, self._done = self._done, None
        self._release()
        if done is not None:
            done(outcome, is_unread)
        elif isinstance(outcome, socket.SocketType):
            outcome.close()

    def _release(self) -> None:
        """Stop the look-up, all attempts and timers."""
        self._exit.deadlines.discard(self)
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        self._waiting.clear()
        while self._attempts:
            self._let_go(next(iter(self._attempts)))

    def _leave(self, attempt: "_Attempt") -> None:
        """Forget an attempt that has its outcome or was cancelled."""
        del self._attempts[attempt]
        self._exit.racers -= bool(self._attempts)

    def _let_go(self, attempt: "_Attempt") -> None:
        """Cancel an attempt."""
        self._leave(attempt)
        self._exit.reactor.poller.forget(attempt.sock.fileno())
        attempt.sock.close()


@final
class _Attempt(Watcher):
    """Connecting socket of a dial, for the poller."""

    __slots__ = ("_dial", "sock")

    def __init__(self, dial: Dial, sock: socket.SocketType) -> None:
        self._dial = dial
        self.sock = sock

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        self._dial.connected(self, events)

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        self._dial.fail(error)
