"""Addresses where this device attaches for streams into its jobs: every daemon of the marketplace.

A browser comes to any of them, and each has its own way in: so no daemon has to carry for another.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxyctl.attach.daemon.control import AttachError
from proxyctl.protocol.frames import integer_of, line_of
from proxyctl.words import plain_line
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

DOORS_MAX: Final = 16  # at once: the most daemons of a service; a service that lies gets no more
LOOK_SECONDS: Final = 30.0
REFUSED_SECONDS: Final = 300.0
_NO_NUMBER: Final = 65_535
_logger = logging.getLogger("worker")


class Door(NamedTuple):
    """The place where the device attaches, and the SHA-256 of its certificate, in hexadecimal."""

    host: str
    port: int
    certificate: str


def doors_of(said: Mapping[str, Any]) -> list[Door]:
    """Return the doors that the marketplace names, each once, that of the daemon asked first.

    Raises:
        LinkError: it names none that could be.
    """
    try:
        named = [said, *said.get("doors", [])]
        doors = [
            Door(
                line_of(each["host"]),
                integer_of(each["port"], _NO_NUMBER),
                line_of(each["certificate_sha256"]).lower(),
            )
            for each in named
        ]
    except (KeyError, ValueError, TypeError):
        raise LinkError("the marketplace does not name the port for devices") from None
    return list(dict.fromkeys(doors))[:DOORS_MAX]


class Doors:
    """Keeps this device attached to all doors; belongs to one event loop.

    Args:
        ask: returns the present doors; raises LinkError and RefusedError.
        hold: stays attached to one as long as that lasts, and returns for how many seconds not to
            come again; raises AttachError.
        say: shows the owner a line, once.
        look_seconds: until a daemon that is new is known.
        refused_seconds: until the next request to a service that has no port for this device.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[list[Door]]],
        hold: Callable[[Door, Retries], Awaitable[float]],
        say: Callable[[str], None],
        *,
        look_seconds: float = LOOK_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
    ) -> None:
        self._look_seconds = look_seconds
        self._refused_seconds = refused_seconds
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._hold = hold
        self._say = say
        self._retries = Retries()
        self._held: dict[Door, asyncio.Task[float]] = {}
        self._known: dict[Door, tuple[Retries, float]] = {}  # and when to come again
        self._looks_at = 0.0

    async def keep(self) -> None:
        """Stay attached until it is cancelled."""
        try:
            while True:
                self._collect()
                if self._loop.time() >= self._looks_at:
                    self._looks_at = self._loop.time() + await self._look()
                seconds = max(0.0, self._looks_at - self._loop.time())
                if self._held:
                    waiting = set(self._held.values())
                    await asyncio.wait(
                        waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(seconds)
        finally:
            tasks = list(self._held.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _collect(self) -> None:
        """Remove attachments that are over, and set the times of the next tries."""
        for door, task in tuple(self._held.items()):
            if task.done():
                del self._held[door]
                again = self._loop.time() + task.result()
                retries, _ = self._known.get(door, (Retries(), 0.0))
                self._known[door] = retries, again
                self._looks_at = min(self._looks_at, again)

    async def _look(self) -> float:
        """Attach where this device is not attached; return the seconds until the next look."""
        try:
            doors = await self._ask()
        except RefusedError as error:
            self._say(f"ports of jobs cannot be reached: {error}")
            return self._refused_seconds
        except LinkError as error:
            self._say(f"ports of jobs cannot be reached now: {error}")
            return self._retries.failed()
        except Exception:
            _logger.exception("ports of jobs cannot be reached")
            return self._retries.failed(self._refused_seconds)
        self._retries.succeeded()
        now, seconds = self._loop.time(), self._look_seconds
        self._known = {door: self._known.get(door, (Retries(), 0.0)) for door in doors}
        for door, (retries, again) in self._known.items():
            # One that is not named any more is left when it stops, and not before.
            if door in self._held or len(self._held) >= DOORS_MAX:
                continue
            if again > now:
                seconds = min(seconds, again - now)
            else:
                self._held[door] = self._loop.create_task(self._stay(door, retries))
        return seconds

    async def _stay(self, door: Door, retries: Retries) -> float:
        try:
            return await self._hold(door, retries)
        except AttachError as error:
            self._say(f"ports of jobs cannot be reached now: {plain_line(str(error))}")
            return retries.failed()
        except Exception:
            _logger.exception("ports of jobs cannot be reached through %s", door.host)
            return retries.failed(self._refused_seconds)
