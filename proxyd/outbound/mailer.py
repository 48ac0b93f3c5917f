"""Sends the e-mails that wait in the outbox: by SMTP, or into the log.

Several are sent at once, and none waits for another: an e-mail that fails is put off. Retries use
half of the senders at most; the rest is for new e-mails. While the server itself is unavailable one
e-mail is tried from time to time, and the attempt does not count against it.

Three kinds of failure differ: this e-mail for good (it is given up), this e-mail for now (it alone
is put off), and the server (all e-mails wait).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from market.accounts.mail import Message, decoded
from market.accounts.outbox import Item, Outbox
from proxyd.loop.fair_slots import FairSlots
from storage.accounts.outbox import OutboxRow
from storage.engines.errors import StoreError, level_of
from storage.engines.outage import Outage

SENDERS = 8  # mail servers let one client have ten connections or more
# Retries may have half of the senders: e-mails that fail for hours must not hold up new ones.
AGAIN_MAX = SENDERS // 2
# How long the e-mails that are being sent may take when the daemon stops; one that is cut off may
# be sent twice. Below `tasks.ATTEMPT_SECONDS`, after which the owner of `run` cancels it again.
GRACE_SECONDS = 0.8

_Settle = Callable[[Item], Awaitable[object]]  # records an outcome in the outbox

_logger = logging.getLogger("mail")


@dataclass(frozen=True, slots=True)
class MailTiming:
    """The pauses of a mailer, in seconds.

    Attributes:
        look: between two reads of the outbox without a wake-up, which find e-mails of other daemons
            and retries. An idle mailer costs one query in this time.
        first_pause: the first pause while the server is unavailable, which bridges a restart. Each
            further one is twice the one before.
        longest_pause: the longest of these pauses: the end of a long outage is noticed no later.
        store_pause: between two attempts to record an outcome. It has to be recorded: else the
            e-mail is sent again.
    """

    look: float = 2.0
    first_pause: float = 5.0
    longest_pause: float = 60.0
    store_pause: float = 1.0


USUAL_TIMING = MailTiming()


class RefusedError(Exception):
    """The server refuses this e-mail permanently."""


class PutOffError(Exception):
    """The server does not accept this e-mail now, and may accept it later."""


class ServerError(Exception):
    """The server accepts no e-mail now: it cannot be reached, or refuses our login or sender."""


class Transport(Protocol):
    """Sends an e-mail: by SMTP, or into the log."""

    async def send(self, message: Message) -> None:
        """Send an e-mail.

        Raises:
            RefusedError, PutOffError, ServerError: it was not sent; the message says why.
        """


class LogTransport:
    """Writes e-mails to the log, so that an installation without mail works."""

    async def send(self, message: Message) -> None:
        """See `Transport.send`."""
        _logger.info(
            "e-mail to %s not sent, mail.host is not set: %s: %s",
            message.to,
            message.subject,
            " ".join(message.links),
        )


class Mailer:
    """Sends the e-mails that wait in the outbox.

    Args:
        is_alone: whether no other daemon sends from this outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        transport: Transport,
        *,
        is_alone: bool,
        timing: MailTiming = USUAL_TIMING,
    ) -> None:
        self._timing = timing
        self._outbox = outbox
        self._transport = transport
        self._is_alone = is_alone
        self._sending: dict[str, _Sending] = {}
        # One domain, whose server may be slow on purpose, never has all senders.
        self._slots = FairSlots[str](SENDERS)
        self._tidy_at = 0.0
        self._outage = Outage(_logger, "e-mails wait for the store to return", logging.WARNING)
        # Consecutive attempts that found the server unavailable, and when the next one may be made
        # (monotonic seconds).
        self._failures = 0
        self._resume_at = 0.0

    def is_server_away(self) -> bool:
        """Return whether the newest attempt found the mail server unavailable."""
        return self._failures > 0

    async def run(self) -> None:
        """Send waiting e-mails, until cancelled; then wait `GRACE_SECONDS` for those being sent."""
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    await self._look(group)
                    await self._outbox.wait(self._timing.look)
            except asyncio.CancelledError:
                tasks = [each.task for each in self._sending.values()]
                if tasks:
                    await asyncio.wait(tasks, timeout=GRACE_SECONDS)
                raise

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Start sending due e-mails, one for each free sender."""
        try:
            if self._is_alone:
                await self._outbox.free_all()
                self._is_alone = False
            now = asyncio.get_running_loop().time()
            if now >= self._tidy_at:
                await self._outbox.tidy()
                self._tidy_at = now + self._timing.look
            for again in (False, True):
                while await self._begin_some(group, again=again):
                    pass
        except StoreError as error:
            self._outage.failed(error)
        else:
            self._outage.ended()

    async def _begin_some(self, group: asyncio.TaskGroup, *, again: bool) -> bool:
        """Start sending some retries (`again`) or some new e-mails. Return whether any began.

        A domain that uses all of its slots is left out of the query, so that its e-mails cannot
        fill the query's limit and hide the others. It is called until it returns False.
        """
        room = self._room(again=again)
        if room <= 0:
            return False
        full = self._slots.full()
        limit = room + len(self._sending)  # rows not yet claimed by their task still look due
        begun = 0
        for row in await self._outbox.due(again=again, limit=limit, but=full):
            if begun < room and row.id not in self._sending and self._slots.take(row.share):
                self._begin(group, row)
                begun += 1
        return begun > 0

    def _room(self, *, again: bool) -> int:
        """Return the number of e-mails that may be sent now: retries (`again`), or new ones."""
        sending = len(self._sending)
        if self._failures:
            is_due = asyncio.get_running_loop().time() >= self._resume_at
            return 1 - sending if is_due else 0
        free = SENDERS - sending
        if not again:
            return free
        retries = sum(each.row.attempts > 0 for each in self._sending.values())
        return min(free, AGAIN_MAX - retries)

    def _begin(self, group: asyncio.TaskGroup, row: OutboxRow) -> None:
        def over(_: "asyncio.Task[None]") -> None:
            del self._sending[row.id]
            self._slots.give(row.share)
            self._outbox.wake()

        task = group.create_task(self._send(row), name=f"mail {row.item_key}")
        task.add_done_callback(over)
        self._sending[row.id] = _Sending(row, task)

    async def _send(self, row: OutboxRow) -> None:
        try:
            item = await self._outbox.claim(row)
        except StoreError as error:
            _logger.log(
                level_of(error, logging.WARNING),
                "e-mail %s: waits for the store to return: %s",
                row.item_key,
                error,
            )
            await asyncio.sleep(self._timing.store_pause)
            return
        if item is not None:
            await self._settle(item, await self._try(item))

    async def _try(self, item: Item) -> _Settle:
        """Try to send an e-mail; return the call that records the outcome in the outbox."""
        try:
            await self._transport.send(decoded(item.payload))
        except ServerError as error:
            self._pause_after(error)
            return self._outbox.put_back
        except (RefusedError, msgspec.DecodeError) as error:
            _logger.error("e-mail %s: given up: %s", item.key, error)
            settle: _Settle = self._outbox.done
        except PutOffError as error:
            settle = partial(self._put_off, reason=str(error))
        except Exception:  # if a library fails on one e-mail, the others are still sent
            _logger.exception("e-mail %s: error in proxyd", item.key)
            settle = partial(self._put_off, reason="error in proxyd")
        else:
            settle = self._outbox.done
        if self._failures:
            _logger.info("mail server available again")
            self._failures = 0
        return settle

    async def _settle(self, item: Item, settle: _Settle) -> None:
        """Record the outcome of an e-mail; retry until the store accepts it."""
        is_failing = False
        while True:
            try:
                await settle(item)
            except StoreError as error:
                if not is_failing:
                    _logger.warning(
                        "e-mail %s: its outcome waits for the store to return: %s", item.key, error
                    )
                is_failing = True
                await asyncio.sleep(self._timing.store_pause)
            else:
                return

    async def _put_off(self, item: Item, *, reason: str) -> None:
        pause = await self._outbox.put_off(item)
        attempts = item.row.attempts
        if pause is None:
            _logger.error("e-mail %s: given up after %d attempts: %s", item.key, attempts, reason)
        else:
            _logger.warning(
                "e-mail %s: attempt %d failed, next in %d s: %s",
                item.key,
                attempts,
                pause,
                reason,
            )

    def _pause_after(self, error: ServerError) -> None:
        """Stop sending for a while; failures of attempts that were under way do not prolong it."""
        now = asyncio.get_running_loop().time()
        if now < self._resume_at:
            return
        timing = self._timing
        pause = min(timing.first_pause * 2 ** min(self._failures, 16), timing.longest_pause)
        self._failures += 1
        self._resume_at = now + pause
        _logger.warning(
            "mail server unavailable, %d e-mails waiting, next attempt in %.0f s: %s",
            self._outbox.waiting,
            pause,
            error,
        )


@dataclass(frozen=True, slots=True)
class _Sending:
    """An e-mail that is being sent."""

    row: OutboxRow
    task: "asyncio.Task[None]"
