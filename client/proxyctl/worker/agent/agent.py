"""The agent: its threads, its attempts, and its end.

One thread asks for work and receives stops (`asking.py`). A second thread reports every few seconds
that the device and its attempts are alive (`syncing.py`). A third thread removes the remains of
ended attempts (`sweeping.py`). Each attempt has a thread, and the main thread looks at everything
once a second.

The agent has threads and processes, because nearly all of its work blocks: files, engines,
requests. After a restart it finds the running programs only by its files on the disk.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxyctl import files
from proxyctl.worker.agent.asking import Asker, Question
from proxyctl.worker.agent.attempts import Attempts
from proxyctl.worker.agent.bell import Bell
from proxyctl.worker.agent.intake import Intake
from proxyctl.worker.agent.lifecycle import AgentError, Lifecycle
from proxyctl.worker.agent.reporting import StateFile
from proxyctl.worker.agent.resting import GRACE_SECONDS, PATIENCE_SECONDS, RestKeeper
from proxyctl.worker.agent.sweeping import Sweeper
from proxyctl.worker.agent.syncing import Syncer
from proxyctl.worker.agent.workshop import Workshop
from proxyctl.worker.base import names
from proxyctl.worker.base.record import NEW_TOKEN
from proxyctl.worker.base.shares import Shares
from proxyctl.worker.task.journal import Journal, Stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.agent.device import Device
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Consent

_logger = logging.getLogger("worker")

_LOOK_SECONDS: Final = 1.0
_FAREWELL_SECONDS: Final = 30.0  # for the last reports, once everything was stopped


@dataclass(frozen=True)
class End:
    """Reason why the agent ended, and whether a new start is useless."""

    words: str
    in_vain: bool = False


class Agent:
    """One agent, in a folder that is its own.

    Args:
        folder: of the agent; the caller has locked it.
    """

    def __init__(
        self,
        consent: Consent,
        folder: Path,
        link: Link,
        device: Device,
    ) -> None:
        self._folder = folder
        self._device = device
        self._lifecycle = lifecycle = Lifecycle()
        self._workshop = Workshop(
            consent, link, Journal(folder), device, ended=self._ended, revoked=self._revoked
        )
        shares = Shares(consent.lend, device.gpus)
        self._attempts = attempts = Attempts(shares, self._workshop.make)
        self._state = state = StateFile(folder / names.STATE, lifecycle)
        self._link = link
        intake = Intake(attempts, self._workshop.journal, lifecycle, consent.lend.max_jobs)
        self._asker = Asker(
            link,
            Question(device.capabilities, consent.lend, attempts, lifecycle),
            intake,
            attempts=attempts,
            lifecycle=lifecycle,
            state=state,
            revoked=self._revoked,
        )
        self._syncer = Syncer(
            link,
            intake,
            device.readings,
            attempts=attempts,
            lifecycle=lifecycle,
            state=state,
            revoked=self._revoked,
        )
        self._sweeper = Sweeper(device.executors, attempts, lifecycle, self._workshop.waiting)
        self._rest = RestKeeper(
            device.rules,
            lifecycle,
            attempts,
            asker=self._asker,
            patience_s=PATIENCE_SECONDS,
        )

    def drain(self) -> None:
        """Take no more work, and end when nothing is left; the second time, stop the running jobs.

        `drain` and `leave` are for signal handlers: they take no lock, and the main thread notices
        them within a second.
        """
        self._lifecycle.drains += 1

    def leave(self) -> None:
        """End now, and let jobs run on: the next agent in this folder adopts them."""
        self._lifecycle.is_leaving = True

    def run(self) -> End:
        """Work until the agent should end.

        Raises:
            AgentError: one of its threads has failed, or an executor does not list its jobs.
            FileError: the journal cannot be used.
            OSError: the folder cannot be used.
        """
        entries = self._workshop.journal.load()
        self._asker.question.sign(_name_of(self._folder))
        self._sweeper.sweep({each.place for each in entries})
        self._workshop.open(self._folder)
        for entry in entries:
            self._attempts.add(entry, is_adopted=True)
        self._link.on_return(self._returned)
        bell = Bell(self._folder, self._attempts.ring)
        threads = [
            threading.Thread(target=self._seen_to, args=(target,), name=name, daemon=True)
            for name, target in (
                ("next", self._asker.run),
                ("sync", self._syncer.run),
                ("sweep", self._sweeper.run),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            end = self._watch()
        finally:
            self._lifecycle.end()
            self._asker.ask_anew()
            self._attempts.leave(GRACE_SECONDS)
            self._device.ports.close()
            self._syncer.report_offline()
            self._workshop.close()
            for executor in self._device.executors.values():
                executor.close()
            self._device.close()
            bell.close()
            self._link.close()
            self._state.remove()
        return end

    def _watch(self) -> End:
        lifecycle = self._lifecycle
        is_drain_known = False
        stopped_at: float | None = None
        while True:
            now = time.monotonic()
            self._read_control()
            self._rest.look(now)
            if lifecycle.drains and not is_drain_known:
                is_drain_known = True
                jobs = len(self._attempts)
                if jobs and lifecycle.drains == 1:
                    _logger.info(
                        "draining: %d jobs continue; repeat the signal to stop them now", jobs
                    )
                self._asker.ask_anew()
            if lifecycle.is_broken:
                raise AgentError("the agent has failed, and jobs run on; start it again")
            if lifecycle.is_leaving:
                return End("jobs run on; start it again to go on with them")
            if lifecycle.drains > 1 and stopped_at is None:
                stopped_at = now
                stop = Stop("the owner has stopped the device", "host", GRACE_SECONDS)
                self._attempts.stop_all(stop)
            if not len(self._attempts) and (lifecycle.drains or lifecycle.is_revoked):
                return self._end()
            if stopped_at is not None and now > stopped_at + _FAREWELL_SECONDS + GRACE_SECONDS:
                return End("some reports are not sent yet; the next start of the agent sends them")
            self._workshop.tend()
            self._state.write(each.entry for each in self._attempts.all())
            lifecycle.changed.wait(_LOOK_SECONDS)
            lifecycle.changed.clear()

    def _end(self) -> End:
        if self._lifecycle.is_revoked:
            return End(
                "the token of this device is not known to the marketplace, or was revoked;"
                f" {NEW_TOKEN}",
                in_vain=True,
            )
        return End("drained")

    def _read_control(self) -> None:
        try:
            asked = files.read(self._folder / names.CONTROL) or {}
        except files.FileError as error:
            self._state.report(str(error))
            return
        drains = asked.get("drains", 0)
        if isinstance(drains, int) and drains > self._lifecycle.drains:
            self._lifecycle.drains = drains

    def _seen_to(self, target: Callable[[], None]) -> None:
        """Run a thread; the agent is useless without one of them, so a failure ends it."""
        try:
            target()
        except Exception:
            _logger.exception("the agent has failed")
            self._lifecycle.fail()

    def _ended(self, attempt_id: str) -> None:
        self._attempts.remove(attempt_id)
        self._lifecycle.changed.set()
        # The present question offers less than is free now, and may wait for most of a minute.
        self._asker.ask_anew()

    def _returned(self) -> None:
        """Try everything again that had to wait for the marketplace."""
        self._lifecycle.resume()
        self._attempts.ring_all()

    def _revoked(self) -> None:
        if not self._lifecycle.is_revoked:
            self._lifecycle.is_revoked = True
            _logger.warning("the marketplace does not know the token of this device, or revoked it")
        self._attempts.stop_all(Stop("the token of this device was revoked"))
        self._lifecycle.changed.set()


def _name_of(folder: Path) -> str:
    """Return the name of the agent of a folder, the same for as long as the folder is there."""
    path = folder / names.AGENT
    name = (files.read(path) or {}).get("name")
    if not isinstance(name, str) or not name:
        name = os.urandom(16).hex()
        files.write(path, {"name": name})
    return name
