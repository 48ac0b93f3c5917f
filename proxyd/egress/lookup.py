"""A name looked up for a dial: its addresses, or the failure that the client gets."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, final

from market.base.networks import Address
from proxyd.egress.exit import Cancellable
from proxyd.egress.resolve import (
    LookupFailedError,
    LookupTimedOutError,
    NameNotFoundError,
    Resolver,
)
from proxyd.wire.events import Failure

if TYPE_CHECKING:
    import asyncio

Answer = list[Address] | Failure


def known(resolver: Resolver, name: str) -> Answer | None:
    """Return the known answer about a name without a query; None when a query is necessary."""
    try:
        return resolver.cached(name)
    except NameNotFoundError:
        return Failure.HOST_UNREACHABLE


@final
class Lookup(Cancellable):
    """Look-up of a name without a known answer.

    Args:
        loop: the loop of the query.
        asker: the network that it counts for, if several compete.
        done: called once with the answer, never before this returns or after `cancel`.
    """

    __slots__ = ("_done", "_task")

    def __init__(
        self,
        loop: "asyncio.AbstractEventLoop",
        resolver: Resolver,
        name: str,
        asker: Hashable,
        done: Callable[[Answer], None],
    ) -> None:
        self._done: Callable[[Answer], None] | None = done
        self._task: asyncio.Task[list[Address]] = loop.create_task(resolver.resolve(name, asker))
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """See `Cancellable.cancel`."""
        self._done = None
        self._task.cancel()

    def _ended(self, task: "asyncio.Task[list[Address]]") -> None:
        if task.cancelled():
            return
        error = task.exception()  # taken, or the loop would complain of it
        done, self._done = self._done, None
        if done is None:
            return
        if error is None:
            done(task.result())
        elif isinstance(error, NameNotFoundError):
            done(Failure.HOST_UNREACHABLE)
        elif isinstance(error, LookupTimedOutError):
            done(Failure.TIMED_OUT)
        else:
            done(Failure.GENERAL)
            if not isinstance(error, LookupFailedError):
                task.get_loop().call_exception_handler(
                    {"message": "looking up a name failed", "exception": error}
                )
