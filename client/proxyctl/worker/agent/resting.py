"""Keeps the owner's rules: takes no work while a rule is broken, and stops jobs after a while."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from proxyctl.worker.task.journal import Stop

if TYPE_CHECKING:
    from proxyctl.worker.agent.asking import Asker
    from proxyctl.worker.agent.attempts import Attempts
    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.agent.rules import Rules

# An owner who only looks something up on the device does not end a job of hours.
PATIENCE_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 10.0  # for a job to end when the owner's rules or the owner stop it
_RULES_SECONDS: Final = 5.0  # between two checks of the rules

_logger = logging.getLogger("worker")


class RestKeeper:
    """Pauses the device while one of its owner's rules is broken.

    Args:
        lifecycle: of the agent; receives the reason.
        asker: asks anew when a rest begins or ends, and when the capabilities have changed.
        patience_s: how long a rule may be broken before jobs are stopped.
    """

    def __init__(
        self,
        rules: Rules,
        lifecycle: Lifecycle,
        attempts: Attempts,
        *,
        asker: Asker,
        patience_s: float,
    ) -> None:
        self._rules = rules
        self._lifecycle = lifecycle
        self._attempts = attempts
        self._asker = asker
        self._patience_s = patience_s
        self._since: float | None = None  # when the present rest began
        self._look_at = 0.0

    def look(self, now: float) -> None:
        """Check the rules, if it is time for that.

        Args:
            now: seconds of a clock that never goes back.
        """
        if now < self._look_at:
            return
        self._look_at = now + _RULES_SECONDS
        reason = self._rules.reason_to_rest()
        if reason != self._lifecycle.rest:
            _logger.info("%s", f"takes no work: {reason}" if reason else "takes work again")
            self._lifecycle.rest = reason
            self._asker.ask_anew()
        elif self._asker.question.is_outdated():
            self._asker.ask_anew()
        if not reason:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._patience_s:
            self._attempts.stop_all(Stop(reason, "host", GRACE_SECONDS))
