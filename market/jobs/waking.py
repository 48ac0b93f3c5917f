"""Who is waited for: a job that a device may take, or a device that has something to hear.

Whatever causes it says so here once it is committed. Listeners of this daemon hear it at once,
those of other daemons on the database by a notice a moment later. Nothing depends on it: whoever
waits also looks again after a while, so a notice that is lost costs time and no more.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from storage.engines.errors import StoreError, level_of
from storage.engines.store import Store, Transaction

# Texts of a notice have at most 4,000 bytes; an identifier has 36, and a space before it.
IDS_PER_NOTICE = 100
# What is not sent yet. More than that in the moment that one transaction takes is a store that does
# not answer, and then the others look again by themselves.
UNSENT_MAX = 20_000
# With so many of them in one transaction, it costs each of them next to nothing.
NOTICES_PER_UNIT = 20
# After a failure of the store. The others find by themselves what is lost meanwhile.
FAILED_SECONDS = 1.0
_WORD = "work"

_logger = logging.getLogger("jobs")


class Topic(StrEnum):
    """What a notice is about.

    `WAITING`: jobs wait for a device. `GONE`: jobs do not wait any more. `DEVICE`: devices have
    something to hear.
    """

    WAITING = "waiting"
    GONE = "gone"
    DEVICE = "device"


class Listener(Protocol):
    """Whoever matches jobs with devices; none of these may raise, or wait."""

    def job_waits(self, job_id: str) -> None:
        """Hear that a job waits for a device."""

    def jobs_gone(self, job_ids: Sequence[str]) -> None:
        """Hear that jobs do not wait any more."""

    def device_wakes(self, device_id: str) -> None:
        """Hear that a device has something to hear: an attempt of it ended, or its token did."""

    def may_have_missed(self) -> None:
        """Hear that notices may have been lost."""


class Waking:
    """Passes on what jobs and devices are waited for.

    Args:
        store: the database, through which other daemons hear of it.
        is_shared: whether there may be others.
        failed_seconds: before notices are sent again, after the store has failed.
    """

    def __init__(
        self, store: Store, *, is_shared: bool = False, failed_seconds: float = FAILED_SECONDS
    ) -> None:
        self._failed_seconds = failed_seconds
        self._store = store
        self.is_shared = is_shared
        # Which daemon says it: notices come back to whoever sent them.
        self._origin = secrets.token_hex(8)
        self._listeners: list[Listener] = []
        self._unsent: dict[tuple[Topic, str], None] = {}
        self._wake = asyncio.Event()

    def listen(self, listener: Listener) -> None:
        """Have a listener hear everything from now on."""
        self._listeners.append(listener)

    def job(self, job_id: str) -> None:
        """Say that a job waits for a device now; to be called once that is committed."""
        for listener in self._listeners:
            listener.job_waits(job_id)
        self._send(Topic.WAITING, (job_id,))

    def gone(self, job_ids: Sequence[str]) -> None:
        """Say that jobs do not wait any more; to be called once that is committed."""
        for listener in self._listeners:
            listener.jobs_gone(job_ids)
        self._send(Topic.GONE, job_ids)

    def device(self, device_id: str) -> None:
        """Say that a device has something to hear; to be called once that is committed."""
        for listener in self._listeners:
            listener.device_wakes(device_id)
        self._send(Topic.DEVICE, (device_id,))

    def hear(self, text: str) -> None:
        """Act on a notice of another daemon; what is not about this is passed over."""
        word, *rest = text.split(" ")
        if word != _WORD or len(rest) < 2 or rest[0] == self._origin:
            return
        topic, ids = rest[1], rest[2:]
        for listener in self._listeners:
            if topic == Topic.WAITING:
                for job_id in ids:
                    listener.job_waits(job_id)
            elif topic == Topic.GONE:
                listener.jobs_gone(ids)
            elif topic == Topic.DEVICE:
                for device_id in ids:
                    listener.device_wakes(device_id)

    def catch_up(self) -> None:
        """Tell the listeners that notices may have been lost."""
        for listener in self._listeners:
            listener.may_have_missed()

    async def run(self) -> None:
        """Send what other daemons should hear until cancelled; a failing store loses it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            try:
                for part in _parts(_texts(self._origin, unsent), NOTICES_PER_UNIT):
                    await self._store.write(_notify, part)
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "other daemons hear of %d changes later: %s",
                    len(unsent),
                    error,
                )
                await asyncio.sleep(self._failed_seconds)

    def _send(self, topic: Topic, ids: Iterable[str]) -> None:
        if not self.is_shared:
            return
        for each in ids:
            if len(self._unsent) >= UNSENT_MAX:
                return
            self._unsent[topic, each] = None
        self._wake.set()


async def _notify(tx: Transaction, texts: Sequence[str]) -> None:
    await tx.notify(*texts)


def _texts(origin: str, unsent: Iterable[tuple[Topic, str]]) -> list[str]:
    """Return the texts that say it all, those of one topic together."""
    ids_of: dict[Topic, list[str]] = {}
    for topic, each in unsent:
        ids_of.setdefault(topic, []).append(each)
    return [
        " ".join((_WORD, origin, topic, *part))
        for topic, ids in ids_of.items()
        for part in _parts(ids, IDS_PER_NOTICE)
    ]


def _parts(items: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
