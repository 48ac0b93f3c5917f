"""The thread that removes the remains of attempts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from proxyctl.worker.agent.lifecycle import AgentError
from proxyctl.worker.executors.base.base import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from proxyctl.worker.agent.attempts import Attempts
    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.executors.base.base import Executor

_SWEEP_SECONDS: Final = 10.0  # no engine was seen that made a container for longer

_logger = logging.getLogger("worker")


class Sweeper:
    """Ends and removes jobs that are in no journal: no marketplace will ever pay for them.

    Args:
        executors: of the device, by name.
        waiting: returns the names of the sandboxes that wait for an attempt.
    """

    def __init__(
        self,
        executors: Mapping[str, Executor],
        attempts: Attempts,
        lifecycle: Lifecycle,
        waiting: Callable[[], set[str]],
    ) -> None:
        self._executors = executors
        self._waiting = waiting
        self._attempts = attempts
        self._lifecycle = lifecycle

    def sweep(self, known: AbstractSet[str]) -> None:
        """End and remove everything that belongs to no known attempt.

        Args:
            known: the attempts of the journal, by their names for executors.

        Raises:
            AgentError: an executor does not answer, or cannot end or remove a job.
            OSError: the machine refuses it.
        """
        try:
            for name, executor in self._executors.items():
                # In this order: a sandbox that waits becomes an attempt's, and never the reverse.
                left = executor.left() - known - self._waiting()
                for attempt_id in left - self._attempts.places():
                    if self._lifecycle.is_ending:
                        return  # the job may belong to the next agent by now
                    _logger.warning("%s was left under %s, and is removed", attempt_id, name)
                    executor.stop(attempt_id, 0)
                    executor.clean(attempt_id)
        except TaskError as error:
            words = f"what runs under {name} cannot be found out, or ended: {error.message}"
            raise AgentError(words) from None

    def run(self) -> None:
        """Sweep once more after attempts have ended, until the agent ends.

        When a program is killed, its engine continues with the program's last request. The engine
        may finish that only after everything of the attempt was removed.
        """
        swept = -1  # the trials at the start may have left something as well
        while not self._lifecycle.is_ending:
            ended = self._attempts.ended
            self._lifecycle.pause(_SWEEP_SECONDS)
            if ended == swept or self._lifecycle.is_ending:
                continue
            try:
                self.sweep(frozenset())
            except (AgentError, OSError) as error:  # as with attempts: no reason to end
                _logger.warning("%s; tried again", error)
            else:
                swept = ended
