"""The attempts on this device, and their shares of the loan."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from proxyctl.worker.base import names
from proxyctl.worker.base.shares import capacity_fields
from proxyctl.worker.task.tasks import resources_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proxyctl.worker.attempt.attempt import Attempt
    from proxyctl.worker.base.shares import Shares
    from proxyctl.worker.task.journal import Entry, Stop


class Attempts:
    """The attempts on this device, by their identifiers; several threads use it.

    Args:
        make: makes an attempt from its entry; the flag marks an attempt of an earlier agent.
    """

    def __init__(self, shares: Shares, make: Callable[[Entry, bool], Attempt]) -> None:
        self._shares = shares
        self._make = make
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._ended = 0

    def __len__(self) -> int:
        """Return the number of attempts on this device."""
        return len(self._attempts)

    @property
    def ended(self) -> int:
        """The number of attempts that have ended since the agent began."""
        return self._ended

    def all(self) -> list[Attempt]:
        """Return the attempts on this device."""
        with self._lock:
            return list(self._attempts.values())

    def find(self, attempt_id: str) -> Attempt | None:
        """Return an attempt of this device; None if there is no such attempt."""
        return self._attempts.get(attempt_id)

    def places(self) -> set[str]:
        """Return the names of the attempts for executors."""
        return {each.entry.place for each in self.all()}

    def take_share(self, attempt_id: str, work: dict[str, object]) -> tuple[str, ...] | None:
        """Take the share of a new attempt; return its GPUs, or None if too little is free."""
        with self._lock:
            return self._shares.take(attempt_id, resources_wanted(work))

    def give_share_back(self, attempt_id: str) -> None:
        """Free the share of an attempt that does not begin."""
        with self._lock:
            self._shares.give_back(attempt_id)

    def add(self, entry: Entry, *, is_adopted: bool, stop: Stop | None = None) -> None:
        """Add an attempt and start its thread, which finds `stop` before its first step."""
        attempt = self._make(entry, is_adopted)
        with self._lock:
            self._attempts[entry.attempt_id] = attempt
            if is_adopted:
                wanted = resources_wanted(entry.work)
                self._shares.adopt(entry.attempt_id, wanted, entry.gpus)
        if stop is not None:
            attempt.stop(stop)
        attempt.start()

    def remove(self, attempt_id: str) -> None:
        """Forget an attempt that has ended, and give its share back."""
        with self._lock:
            del self._attempts[attempt_id]
            self._shares.give_back(attempt_id)
            self._ended += 1

    def ring(self, name: str) -> None:
        """Wake an attempt, if it is on this device; `name` is what its supervisor sends."""
        attempt = self.find(name.rstrip(names.OF_LOG))
        if attempt is None:
            return
        if name.endswith(names.OF_LOG):
            attempt.ring_for_log()
        else:
            attempt.ring()

    def ring_all(self) -> None:
        """Wake all attempts."""
        for attempt in self.all():
            attempt.ring()

    def stop_all(self, stop: Stop) -> None:
        """Stop all attempts."""
        for attempt in self.all():
            attempt.stop(stop)

    def leave(self, seconds: float) -> None:
        """End the threads of all attempts, and let the jobs run on.

        Args:
            seconds: to wait for each thread.
        """
        for attempt in self.all():
            attempt.leave()
        for attempt in self.all():
            attempt.join(seconds)

    def capacity(self) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """Return the free capacity, and the attempts that use the rest."""
        with self._lock:
            free = capacity_fields(self._shares.free())
            attempts = [
                {"job_id": each.entry.job_id, "attempt": each.entry.attempt}
                for each in self._attempts.values()
                if each.said() is not None
            ]
        return free, attempts
