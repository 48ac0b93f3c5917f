"""The thread that asks the daemon for work."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.agent.orders import orders_of
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proxyctl.worker.agent.attempts import Attempts
    from proxyctl.worker.agent.intake import Intake
    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.agent.reporting import StateFile
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Lend

# Longest time that the daemon may hold a question; meanwhile it sends a space every 50 seconds.
_WAIT_SECONDS: Final = 300.0
_SHORT_WAIT_SECONDS: Final = 25.0  # where a proxy on the way keeps the spaces back
_REPLACED_SECONDS: Final = 60.0  # until the next question whether the other agent is still there
_REPLACED: Final = (
    "takes no work: another agent with this device's token was started later, and gets the jobs;"
    " end one of the two, or give it a token of its own"
)


class Question:
    """The question for work: the abilities of the device, and its free part."""

    def __init__(
        self,
        capabilities: Callable[[], Mapping[str, Any]],
        lend: Lend,
        attempts: Attempts,
        lifecycle: Lifecycle,
    ) -> None:
        self._capabilities = capabilities
        self._lend = lend
        self._attempts = attempts
        self._lifecycle = lifecycle
        self._name = ""
        self._since = int(datetime.now(timezone.utc).timestamp())
        self._sent: Mapping[str, Any] = {}  # the capabilities of the last question

    def sign(self, name: str) -> None:
        """Set the name of the agent; with it the daemon recognises two agents with one token."""
        self._name = name

    def is_outdated(self) -> bool:
        """Return whether the capabilities have changed since the last question."""
        return bool(self._sent) and self._sent != self._capabilities()

    def fields(self) -> dict[str, Any]:
        """Return the fields of a new question."""
        self._sent = self._capabilities()
        free, attempts = self._attempts.capacity()
        if self._lifecycle.drains or self._lifecycle.rest:
            free = {**free, "slots": 0}
        return {
            "capacity": free,
            "capabilities": self._sent,
            "min_price_usd": self._lend.min_price_usd,
            "attempts": attempts,
            "agent": self._name,
            "agent_since": self._since,
        }


class Asker:
    """Asks for work, and carries out the answers.

    Args:
        revoked: called when the marketplace does not know the token of this device.
    """

    def __init__(
        self,
        link: Link,
        question: Question,
        intake: Intake,
        *,
        attempts: Attempts,
        lifecycle: Lifecycle,
        state: StateFile,
        revoked: Callable[[], None],
    ) -> None:
        self._link = link
        self.question = question
        self._intake = intake
        self._attempts = attempts
        self._lifecycle = lifecycle
        self._state = state
        self._revoked = revoked
        self._seen = 0  # the number of the daemon's last answer
        self._is_stale = False  # the answer to the present question is not wanted any more

    def ask_anew(self) -> None:
        """Cancel the question that is under way, because its fields are out of date."""
        self._is_stale = True
        self._link.interrupt()

    def run(self) -> None:
        """Ask for work until the agent ends, or its token is revoked."""
        retries = Retries()
        lifecycle = self._lifecycle
        # The daemon answers the first question without delay, and also the first question after
        # the marketplace was away. So the owner sees the connection before there is work.
        wait_s, wait_max_s = 0.0, _WAIT_SECONDS
        while not lifecycle.is_ending and not lifecycle.is_revoked:
            self._is_stale = False
            fields = {**self.question.fields(), "seen": self._seen, "wait_s": wait_s}
            try:
                reply = self._link.poll("/api/worker/next", fields, wait_s, lambda: self._is_stale)
                order = orders_of(reply)
            except LinkError as error:
                if not self._is_stale:
                    # Silence after a question without a wait proves nothing about a proxy.
                    if error.is_silence and wait_s > _SHORT_WAIT_SECONDS:
                        wait_max_s = _SHORT_WAIT_SECONDS
                    wait_s = 0.0
                    self._state.report(str(error))
                    lifecycle.pause(retries.failed(error.after))
                continue
            except RefusedError as error:
                if error.is_revoked:
                    self._revoked()
                    return
                wait_s = 0.0
                self._state.report(f"the marketplace gives no work: {error}")
                lifecycle.pause(retries.failed())
                continue
            retries.succeeded()
            if order.is_replaced:
                wait_s = 0.0
                self._state.report(_REPLACED)
                lifecycle.pause(_REPLACED_SECONDS)
                continue
            wait_s = wait_max_s
            self._state.report("takes work")
            self._seen = order.seen
            self._intake.carry_out(order)
