"""The agent: asks for work, says what becomes of it, and keeps the owner's rules.

One thread asks for work and is told what is to be stopped. One tells, every few seconds, that the
device and its attempts are alive, over a connection of its own: a device that is busy is not lost.
Each attempt has a thread, and the main thread looks at everything once a second.

The agent has threads and processes, because nearly all of its work blocks: files, engines,
requests. After a restart it finds the programs that run by its files on the disk alone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.words import OwnerError, plain_line
from proxyctl.worker.agent import benchmark
from proxyctl.worker.agent.bell import Bell
from proxyctl.worker.agent.orders import NotUnderstoodError, Order, orders_of, work_of
from proxyctl.worker.attempt.attempt import Attempt, Tools
from proxyctl.worker.attempt.supervisors import Supervisors
from proxyctl.worker.base import names
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.record import NEW_TOKEN
from proxyctl.worker.base.retries import Retries
from proxyctl.worker.base.shares import Shares, capacity_fields
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.task.journal import Journal, Stop
from proxyctl.worker.task.tasks import resources_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from proxyctl.protocol.jobspec.payload import Payload
    from proxyctl.worker.agent.rules import Rules
    from proxyctl.worker.attempt.attempt import Transfers
    from proxyctl.worker.attempt.pump import LogSender
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Consent
    from proxyctl.worker.executors.base.base import Executor
    from proxyctl.worker.network.ports import Ports
    from proxyctl.worker.sensors.nvidia import Gpu
    from proxyctl.worker.task.journal import Entry

_logger = logging.getLogger("worker")

# That the daemon may hold a question for work; meanwhile it sends a space each 50 seconds.
_WAIT_SECONDS: Final = 300.0
_SHORT_WAIT_SECONDS: Final = 25.0  # where something on the way keeps the spaces back
_SYNC_SECONDS: Final = 20.0  # a device counts as away after 90
_LOOK_SECONDS: Final = 1.0
_RULES_SECONDS: Final = 5.0  # between two looks at what the owner's rules are about
# Somebody who only looks something up on their device does not end a job of hours.
PATIENCE_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 10.0
_REFUSALS_MAX: Final = 16  # of jobs for which there is no room; each has a folder and a thread
_SWEEP_SECONDS: Final = 10.0  # an engine that made a container for longer was not seen
_REPLACED_SECONDS: Final = 60.0  # until it is asked whether the other agent is still there
_REPLACED: Final = (
    "takes no work: another agent with this device's token was started later, and gets the jobs;"
    " end one of the two, or give it a token of its own"
)
_FAREWELL_SECONDS: Final = 30.0  # for the last reports, once everything was stopped


@dataclass(frozen=True)
class Device:
    """What the agent works with.

    Attributes:
        executors: those that can be used, by name, in the order in which they are preferred.
        executor_for: returns the one for a payload; raises TaskError where there is none.
        log_sender: makes the one of an attempt.
        transfers: of files.
        ports: of jobs that listen on some.
        gpus: that are lent, and there.
        capabilities: returns what the daemon is told of the device.
        readings: what it is told with every heartbeat.
        rules: of the owner.
        close: lets go of what executors share, at the very end.
    """

    executors: Mapping[str, Executor]
    executor_for: Callable[[Payload], Executor]
    log_sender: Callable[[Entry, Path], LogSender]
    transfers: Transfers
    ports: Ports
    gpus: tuple[Gpu, ...]
    capabilities: Callable[[], Mapping[str, Any]]
    readings: Callable[[], dict[str, Any]]
    rules: Rules
    close: Callable[[], None]


@dataclass(frozen=True)
class End:
    """Why the agent ended: in words, and whether to start it again is in vain."""

    words: str
    in_vain: bool = False


class AgentError(OwnerError):
    """A mistake of this program; the log tells which. Jobs run on, and the next agent has them."""


class Agent:  # its parts, and what several threads have to know of one another
    """One agent, in a folder that is its own.

    Args:
        consent: of the owner.
        folder: which the caller has locked.
        link: with the marketplace.
        device: that it works on.
        patience_s: how long the owner's rules may be broken before what runs is stopped.
    """

    def __init__(
        self,
        consent: Consent,
        folder: Path,
        link: Link,
        device: Device,
        *,
        patience_s: float = PATIENCE_SECONDS,
    ) -> None:
        self._consent = consent
        self._folder = folder
        self._link = link
        self._device = device
        self._patience_s = patience_s
        self._journal = Journal(folder)
        self._shares = Shares(consent.lend, device.gpus)
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._orders = _Orders()
        self._name = ""
        self._since = int(datetime.now(timezone.utc).timestamp())
        self._says = "starting"
        self._ends = 0  # attempts that have ended

    def drain(self) -> None:
        """Take no more work, and end when nothing is left; the second time, stop what runs.

        For signal handlers, as is `leave`: no lock is taken, and it is noticed within a second.
        """
        self._orders.drains += 1

    def leave(self) -> None:
        """End now, and let jobs run on: the next agent in this folder adopts them."""
        self._orders.is_leaving = True

    def run(self) -> End:
        """Work until it is told to end.

        Raises:
            AgentError: one of its threads has failed, or nobody knows what runs here.
            FileError: the journal cannot be used.
            OSError: the folder cannot be used.
        """
        entries = self._journal.load()
        self._name = _name_of(self._folder)
        self._sweep({each.attempt_id for each in entries})
        self._tools = Tools(
            consent=self._consent,
            link=self._link,
            journal=self._journal,
            supervisors=Supervisors(self._folder),
            executor_for=self._device.executor_for,
            log_sender=self._device.log_sender,
            transfers=self._device.transfers,
            ports=self._device.ports,
            ended=self._ended,
            revoked=self._revoked,
        )
        for entry in entries:
            self._add(entry, is_adopted=True)
        self._link.on_return(self._returned)
        bell = Bell(self._folder, self._ring)
        threads = [
            threading.Thread(target=self._seen_to, args=(target,), name=name, daemon=True)
            for name, target in (
                ("next", self._ask),
                ("sync", self._sync),
                ("sweep", self._sweep_again),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            end = self._watch()
        finally:
            self._orders.is_ending = True
            self._orders.changed.set()
            self._ask_anew()
            for attempt in self._all():
                attempt.leave()
            for attempt in self._all():
                attempt.join(_GRACE_SECONDS)
            self._device.ports.close()
            self._say_offline()
            for executor in self._device.executors.values():
                executor.close()
            self._device.close()
            bell.close()
            self._tools.supervisors.close()
            self._link.close()
            files.remove(self._folder / names.STATE)
        return end

    # The main thread.

    def _watch(self) -> End:
        orders = self._orders
        rested_since: float | None = None
        rules_at = 0.0
        stopped_at: float | None = None
        while True:
            now = time.monotonic()
            self._read_control()
            if now >= rules_at:
                rules_at = now + _RULES_SECONDS
                rested_since = self._rest(rested_since, now)
            if orders.drains and not orders.is_drain_known:
                orders.is_drain_known = True
                jobs = len(self._all())
                if jobs and orders.drains == 1:
                    _logger.info("draining: jobs go on: %d; once more to stop them now", jobs)
                self._ask_anew()
            if orders.is_broken:
                raise AgentError("the agent has failed, and jobs run on; start it again")
            if orders.is_leaving:
                return End("jobs run on; start it again to go on with them")
            if orders.drains > 1 and stopped_at is None:
                stopped_at = now
                self._stop_all(Stop("the owner has stopped the device", "host", _GRACE_SECONDS))
            if not self._all() and (orders.drains or orders.is_revoked):
                return self._end()
            if stopped_at is not None and now > stopped_at + _FAREWELL_SECONDS + _GRACE_SECONDS:
                return End("what could not be reported is reported when it is started again")
            self._tools.supervisors.reap()
            self._tools.supervisors.replenish()
            self._write_state()
            orders.changed.wait(_LOOK_SECONDS)
            orders.changed.clear()

    def _end(self) -> End:
        if self._orders.is_revoked:
            return End(
                "the token of this device is not known to the marketplace, or was revoked;"
                f" {NEW_TOKEN}",
                in_vain=True,
            )
        return End("drained")

    def _rest(self, since: float | None, now: float) -> float | None:
        """Keep the owner's rules; return since when the device rests."""
        reason = self._device.rules.reason_to_rest()
        if reason != self._orders.rest:
            _logger.info("%s", f"takes no work: {reason}" if reason else "takes work again")
            self._orders.rest = reason
            self._ask_anew()
        elif self._orders.told and self._orders.told != self._device.capabilities():
            self._ask_anew()
        if not reason:
            return None
        if since is not None and now - since >= self._patience_s:
            self._stop_all(Stop(reason, "host", _GRACE_SECONDS))
        return now if since is None else since

    def _stop_all(self, stop: Stop) -> None:
        for attempt in self._all():
            attempt.stop(stop)

    def _read_control(self) -> None:
        try:
            asked = files.read(self._folder / names.CONTROL) or {}
        except files.FileError as error:
            self._say(str(error))
            return
        drains = asked.get("drains", 0)
        if isinstance(drains, int) and drains > self._orders.drains:
            self._orders.drains = drains

    def _write_state(self) -> None:
        attempts = [
            {
                "attempt_id": each.attempt_id,
                "title": plain_line(str(each.entry.work.get("title", ""))),
                "state": each.entry.state.value,
            }
            for each in self._all()
        ]
        orders = self._orders
        fields = {
            "words": "draining" if orders.drains else self._says,
            "resting": orders.rest,
            "attempts": attempts,
        }
        if fields == orders.written:
            return
        try:
            files.write(self._folder / names.STATE, fields)
        except files.FileError as error:
            self._say(str(error))
        else:
            orders.written = fields

    def _say_offline(self) -> None:
        if self._all() or self._orders.is_revoked:
            return
        try:
            self._link.post("/api/worker/offline", {})
        except (LinkError, RefusedError):
            return  # it is found out after a while

    # Attempts.

    def _all(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts.values())

    def _add(self, entry: Entry, *, is_adopted: bool, stop: Stop | None = None) -> Attempt:
        """Add an attempt and start its thread, which finds `stop` before its first step."""
        attempt = Attempt(entry, self._tools, is_adopted=is_adopted)
        with self._lock:
            self._attempts[entry.attempt_id] = attempt
            if is_adopted:
                wanted = resources_wanted(entry.work)
                self._shares.adopt(entry.attempt_id, wanted, entry.gpus)
        if stop is not None:
            attempt.stop(stop)
        attempt.start()
        return attempt

    def _ring(self, attempt_id: str) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.ring()

    def _ended(self, attempt_id: str) -> None:
        with self._lock:
            del self._attempts[attempt_id]
            self._shares.give_back(attempt_id)
            self._ends += 1
        self._orders.changed.set()
        # What is asked for just now is less than is free; the answer may be most of a minute away.
        self._ask_anew()

    def _returned(self) -> None:
        """Try everything again now that had to wait for the marketplace."""
        self._orders.go_on()
        for attempt in self._all():
            attempt.ring()

    def _revoked(self) -> None:
        if not self._orders.is_revoked:
            self._orders.is_revoked = True
            _logger.warning("the marketplace does not know the token of this device, or revoked it")
        self._stop_all(Stop("the token of this device was revoked"))
        self._orders.changed.set()

    def _sweep(self, known: set[str]) -> None:
        """End and remove what is here and in no journal: nobody will ever pay for it.

        Raises:
            AgentError: an executor does not tell, or does not do it.
            OSError: the machine does not.
        """
        try:
            for name, executor in self._device.executors.items():
                strangers = executor.left() - known
                with self._lock:
                    strangers -= self._attempts.keys()
                for attempt_id in strangers:
                    if self._orders.is_ending:
                        return  # they may be the next agent's already
                    _logger.warning("%s was left under %s, and is removed", attempt_id, name)
                    executor.stop(attempt_id, 0)
                    executor.clean(attempt_id)
        except TaskError as error:
            words = f"what runs under {name} cannot be found out, or ended: {error.message}"
            raise AgentError(words) from None

    def _seen_to(self, target: Callable[[], None]) -> None:
        """Run a thread; without it the device would be there, and of no use to anybody."""
        try:
            target()
        except Exception:
            _logger.exception("the agent has failed")
            self._orders.is_broken = True
            self._orders.changed.set()

    # The thread that asks for work.

    def _ask(self) -> None:
        retries = Retries()
        orders = self._orders
        # The first question, and the first one after the marketplace was away, is answered at
        # once: the owner is to see that it is there before there is work.
        wait_s, wait_max_s = 0.0, _WAIT_SECONDS
        while not orders.is_ending and not orders.is_revoked:
            orders.is_stale = False
            fields = {**self._question(), "wait_s": wait_s}
            try:
                reply = self._link.poll("/api/worker/next", fields, wait_s, lambda: orders.is_stale)
                order = orders_of(reply)
            except LinkError as error:
                if not orders.is_stale:
                    # One that was to be answered at once tells nothing of what is on the way.
                    if error.is_silence and wait_s > _SHORT_WAIT_SECONDS:
                        wait_max_s = _SHORT_WAIT_SECONDS
                    wait_s = 0.0
                    self._wait(retries, error)
                continue
            except RefusedError as error:
                if error.is_revoked:
                    self._revoked()
                    return
                wait_s = 0.0
                self._say(f"the marketplace gives no work: {error}")
                orders.pause(retries.failed())
                continue
            retries.succeeded()
            if order.is_replaced:
                wait_s = 0.0
                self._say(_REPLACED)
                orders.pause(_REPLACED_SECONDS)
                continue
            wait_s = wait_max_s
            self._say("takes work")
            orders.seen = order.seen
            self._carry_out(order)
            if order.is_to_show:
                self._show()

    def _show(self) -> None:
        """Show what the device has, if nothing runs here that this would slow down."""
        if self._all() or self._orders.drains or self._orders.rest:
            return
        _logger.info("shows the marketplace what it has, for some seconds")
        try:
            benchmark.show(self._link, self._consent.lend, is_short=True)
        except (LinkError, RefusedError) as error:
            _logger.info("it was not shown: %s", plain_line(str(error)))
        except (KeyError, TypeError, ValueError) as error:  # a task that cannot be
            _logger.info("it was not shown: the marketplace is not understood: %r", error)

    def _ask_anew(self) -> None:
        """End the question that is under way, which was asked while things were otherwise."""
        self._orders.is_stale = True
        self._link.interrupt()

    def _question(self) -> dict[str, Any]:
        orders = self._orders
        orders.told = self._device.capabilities()
        with self._lock:
            free = capacity_fields(self._shares.free())
            attempts = [
                {"job_id": each.entry.job_id, "attempt": each.entry.attempt}
                for each in self._attempts.values()
                if each.said() is not None
            ]
        if orders.drains or orders.rest:
            free = {**free, "slots": 0}
        is_free = free["slots"] > 0 and not self._all()
        return {
            **({"can_benchmark": True} if is_free else {}),
            "capacity": free,
            "capabilities": orders.told,
            "min_price_usd": self._consent.lend.min_price_usd,
            "attempts": attempts,
            "seen": orders.seen,
            "agent": self._name,
            "agent_since": self._since,
        }

    def _carry_out(self, order: Order) -> None:
        for stop in order.stops:
            attempt = self._attempts.get(stop.attempt_id)
            if attempt is not None:
                attempt.stop(Stop(stop.reason, grace_s=attempt.cancelled_grace_s))
        for work in order.jobs:
            self._take(work)

    def _take(self, given: object) -> None:
        """Take a job on; what is not, is named by nobody, and given to another device soon."""
        try:
            work = work_of(given)
        except NotUnderstoodError as error:
            _logger.warning("a job is not taken: %s", error)
            return
        attempt_id = f"{work['job_id']}-{work['attempt']}"
        if attempt_id in self._attempts:
            return
        if len(self._attempts) >= self._consent.lend.max_jobs + _REFUSALS_MAX:
            _logger.warning("job %s: not taken: far more are given than were asked for", attempt_id)
            return
        with self._lock:
            gpus = self._shares.take(attempt_id, resources_wanted(work))
        try:
            entry = self._journal.add(work, gpus or ())
        except files.FileError as error:
            self._shares.give_back(attempt_id)
            _logger.warning("job %s: not taken: %s", attempt_id, error)
            return
        _logger.info("job %s: taken: %s", attempt_id, plain_line(str(work.get("title", ""))))
        stop = Stop(self._orders.rest, "host") if self._orders.rest else None
        if stop is None and gpus is None:
            # A job gets an equal part of each amount that it does not name. The marketplace counts
            # no such part, so the room may be short by no fault of the device.
            stop = Stop("as much is not free here", "refused")
        self._add(entry, is_adopted=False, stop=stop)

    # The thread that looks after what was removed.

    def _sweep_again(self) -> None:
        """Sweep once more after attempts have ended.

        An engine goes on with what a program has asked it for that was killed, and may be done
        with it only after all of the attempt was removed.
        """
        orders = self._orders
        swept = -1  # what was tried out at the start may have left something, too
        while not orders.is_ending:
            ended = self._ends
            orders.pause(_SWEEP_SECONDS)
            if ended == swept or orders.is_ending:
                continue
            try:
                self._sweep({each.attempt_id for each in self._all()})
            except (AgentError, OSError) as error:  # as with attempts: no reason to end
                _logger.warning("%s; tried again", error)
            else:
                swept = ended

    # The thread that says that all is well.

    def _sync(self) -> None:
        retries = Retries()
        orders = self._orders
        while not orders.is_ending and not orders.is_revoked:
            said = [each.said() for each in self._all()]
            fields = {**self._device.readings(), "attempts": [each for each in said if each]}
            try:
                reply = self._link.post("/api/worker/sync", fields)
                order = orders_of(reply)
            except LinkError as error:
                self._wait(retries, error)
                continue
            except RefusedError as error:
                if error.is_revoked:
                    self._revoked()
                    return
                self._say(f"the marketplace does not take what the device says: {error}")
                orders.pause(retries.failed())
                continue
            retries.succeeded()
            self._carry_out(order)
            orders.pause(min(_SYNC_SECONDS, order.lease_s / 4))

    def _wait(self, retries: Retries, error: LinkError) -> None:
        self._say(str(error))
        self._orders.pause(retries.failed(error.after))

    def _say(self, words: str) -> None:
        if words != self._says:
            _logger.info("%s", words)
            self._says = words
            self._orders.changed.set()  # for the owner to see it at once


def _name_of(folder: Path) -> str:
    """Return the name of the agent of a folder, the same for as long as the folder is there."""
    path = folder / names.AGENT
    name = (files.read(path) or {}).get("name")
    if not isinstance(name, str) or not name:
        name = os.urandom(16).hex()
        files.write(path, {"name": name})
    return name


class _Orders:
    """What the threads of an agent have to know of one another.

    Attributes:
        drains: how often somebody has asked it to end.
        rest: why it takes no work just now, in words.
        seen: the number of the last answer of the daemon.
        told: what the daemon was told last of what the device can do.
        is_drain_known: the daemon is asked for nothing since it was asked to end.
        is_stale: nobody waits for an answer to it any more.
        is_broken: one of the threads has failed.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self._ending = False
        self._pauses = threading.Condition()
        self._goes_on = 0  # how often pauses were ended early
        self.drains = 0
        self.is_leaving = False
        self.is_drain_known = False
        self.is_revoked = False
        self.rest = ""
        self.seen = 0
        self.told: Mapping[str, Any] = {}
        self.is_stale = False
        self.is_broken = False
        self.written: dict[str, Any] = {}

    @property
    def is_ending(self) -> bool:
        """Whether all threads are to end."""
        return self._ending

    @is_ending.setter
    def is_ending(self, value: bool) -> None:
        assert value  # noqa: S101 - it never takes that back
        with self._pauses:
            self._ending = True
            self._pauses.notify_all()

    def go_on(self) -> None:
        """End all pauses."""
        with self._pauses:
            self._goes_on += 1
            self._pauses.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the agent, nor beyond `go_on`."""
        with self._pauses:
            count = self._goes_on
            self._pauses.wait_for(lambda: self._ending or self._goes_on != count, seconds)
