"""Sends the e-mails that wait in the outbox: by SMTP, or into the log.

Several are sent at once, and none waits for another: one that fails is put off, and those that are
tried again leave half of the senders to those that were not tried yet. While the server itself
cannot be used one e-mail is tried from time to time, and none is blamed for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from market.mail import Message, decoded
from market.outbox import Item, Outbox
from proxyd.loop.fair_slots import FairSlots
from storage.errors import StoreError
from storage.outbox import OutboxRow

SENDERS = 8  # mail servers let one client have ten connections or more
AGAIN_MAX = SENDERS // 2
# How late an e-mail may be that another daemon wrote down, or that is tried again.
LOOK_SECONDS = 2.0
# While the server cannot be used: for how long nothing is tried, doubled each time.
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
STORE_PAUSE_SECONDS = 1.0
# What is being sent when the daemon stops mostly takes less; cut off, it may be sent twice. Below
# `tasks.ATTEMPT_SECONDS`, after which whoever ends `run` cancels again.
GRACE_SECONDS = 0.8

_Settle = Callable[[Item], Awaitable[object]]

_logger = logging.getLogger("mail")


class RefusedError(Exception):
    """This e-mail will never be taken."""


class PutOffError(Exception):
    """This e-mail is not taken now."""


class ServerError(Exception):
    """No e-mail is taken now: the server cannot be reached, or does not let us in."""


class Transport(Protocol):
    """By which way e-mails leave."""

    async def send(self, message: Message) -> None:
        """Send one.

        Raises:
            RefusedError, PutOffError, ServerError: it was not; the message says why.
        """


class LogTransport:
    """Writes e-mails to the log, so that an installation without mail works."""

    async def send(self, message: Message) -> None:
        """See `Transport.send`."""
        _logger.info(
            "no mail server is configured; to %s: %s: %s",
            message.to,
            message.subject,
            " ".join(message.links),
        )


class Mailer:
    """Sends what waits in the outbox.

    Args:
        outbox: where e-mails wait.
        transport: by which way they leave.
        is_alone: whether no other daemon sends from this outbox.
    """

    def __init__(self, outbox: Outbox, transport: Transport, *, is_alone: bool) -> None:
        self._outbox = outbox
        self._transport = transport
        self._is_alone = is_alone
        self._sending: dict[str, _Sending] = {}
        # E-mails to one domain, whose server may be slow by intent, leave room for others.
        self._places = FairSlots(SENDERS)
        self._tidy_at = 0.0
        self._store_is_failing = False
        # How often in a row the server could not be used, and until when it is left alone.
        self._failures = 0
        self._resume_at = 0.0

    async def run(self) -> None:
        """Send what waits, until cancelled; then what is being sent has a moment to finish."""
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    await self._look(group)
                    await self._outbox.wait(LOOK_SECONDS)
            except asyncio.CancelledError:
                tasks = [each.task for each in self._sending.values()]
                if tasks:
                    await asyncio.wait(tasks, timeout=GRACE_SECONDS)
                raise

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Begin to send what there is room for."""
        try:
            if self._is_alone:
                await self._outbox.free_all()
                self._is_alone = False
            now = asyncio.get_running_loop().time()
            if now >= self._tidy_at:
                await self._outbox.tidy()
                self._tidy_at = now + LOOK_SECONDS
            for again in (False, True):
                while await self._begin_some(group, again=again):
                    pass
        except StoreError as error:
            if not self._store_is_failing:
                _logger.warning("e-mails wait for the store to return: %s", error)
            self._store_is_failing = True
        else:
            self._store_is_failing = False

    async def _begin_some(self, group: asyncio.TaskGroup, *, again: bool) -> bool:
        """Begin to send some that were, or were not, tried before; say whether there were any.

        Those of a domain that has no place left are passed over the next time.
        """
        room = self._room(again=again)
        if room <= 0:
            return False
        shares = {each.row.share for each in self._sending.values()}
        full = [share for share in shares if not self._places.has_room(share)]
        limit = room + len(self._sending)  # those that were just begun may still look due
        begun = 0
        for row in await self._outbox.due(again=again, limit=limit, but=full):
            if begun < room and row.id not in self._sending and self._places.take(row.share):
                self._begin(group, row)
                begun += 1
        return begun > 0

    def _room(self, *, again: bool) -> int:
        """Return how many more may be sent at once."""
        sending = len(self._sending)
        if self._failures:
            is_due = asyncio.get_running_loop().time() >= self._resume_at
            return 1 - sending if is_due else 0
        free = SENDERS - sending
        if not again:
            return free
        tried = sum(each.row.attempts > 0 for each in self._sending.values())
        return min(free, AGAIN_MAX - tried)

    def _begin(self, group: asyncio.TaskGroup, row: OutboxRow) -> None:
        def over(_: "asyncio.Task[None]") -> None:
            del self._sending[row.id]
            self._places.give(row.share)
            self._outbox.wake()

        task = group.create_task(self._send(row), name=f"mail {row.item_key}")
        task.add_done_callback(over)
        self._sending[row.id] = _Sending(row, task)

    async def _send(self, row: OutboxRow) -> None:
        try:
            item = await self._outbox.claim(row)
        except StoreError as error:
            _logger.warning("e-mail %s waits for the store to return: %s", row.item_key, error)
            await asyncio.sleep(STORE_PAUSE_SECONDS)
            return
        if item is not None:
            await self._settle(item, await self._try(item))

    async def _try(self, item: Item) -> _Settle:
        """Try to send an e-mail; return what becomes of it."""
        try:
            await self._transport.send(decoded(item.payload))
        except ServerError as error:
            self._leave_alone(error)
            return self._outbox.put_back
        except (RefusedError, msgspec.DecodeError) as error:
            _logger.error("e-mail %s is given up: %s", item.key, error)
            outcome: _Settle = self._outbox.done
        except PutOffError as error:
            outcome = partial(self._put_off, reason=str(error))
        except Exception:  # whatever one e-mail does to a library, the others are still sent
            _logger.exception("e-mail %s met a mistake in the program", item.key)
            outcome = partial(self._put_off, reason="a mistake in the program")
        else:
            outcome = self._outbox.done
        if self._failures:
            _logger.info("the mail server can be used again")
            self._failures = 0
        return outcome

    async def _settle(self, item: Item, settle: _Settle) -> None:
        """Note what became of an e-mail, as soon as the store takes it."""
        is_failing = False
        while True:
            try:
                await settle(item)
            except StoreError as error:
                if not is_failing:
                    _logger.warning(
                        "what became of e-mail %s waits for the store to return: %s",
                        item.key,
                        error,
                    )
                is_failing = True
                await asyncio.sleep(STORE_PAUSE_SECONDS)
            else:
                return

    async def _put_off(self, item: Item, *, reason: str) -> None:
        pause = await self._outbox.put_off(item)
        attempts = item.row.attempts
        if pause is None:
            _logger.error("e-mail %s is given up after %d attempts: %s", item.key, attempts, reason)
        else:
            _logger.warning(
                "e-mail %s: attempt %d failed, the next is in %d s: %s",
                item.key,
                attempts,
                pause,
                reason,
            )

    def _leave_alone(self, error: ServerError) -> None:
        """Try nothing for a while; who fails at the same time as another says nothing new."""
        now = asyncio.get_running_loop().time()
        if now < self._resume_at:
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 16), LONGEST_PAUSE_SECONDS)
        self._failures += 1
        self._resume_at = now + pause
        _logger.warning(
            "the mail server cannot be used, %d e-mails wait, the next attempt is in %.0f s: %s",
            self._outbox.waiting,
            pause,
            error,
        )


@dataclass(frozen=True, slots=True)
class _Sending:
    """An e-mail that is being sent."""

    row: OutboxRow
    task: "asyncio.Task[None]"
