"""The thread that reports to the daemon, every few seconds, that the device is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.agent.orders import orders_of
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.agent.attempts import Attempts
    from proxyctl.worker.agent.intake import Intake
    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.agent.reporting import StateFile
    from proxyctl.worker.base.link import Link

_SYNC_SECONDS: Final = 20.0  # the daemon counts a device as away after 90


class Syncer:
    """Reports the device and its attempts over a separate connection.

    So a device that is busy with other requests does not count as lost.

    Args:
        revoked: called when the marketplace does not know the token of this device.
    """

    def __init__(
        self,
        link: Link,
        intake: Intake,
        readings: Callable[[], dict[str, Any]],
        *,
        attempts: Attempts,
        lifecycle: Lifecycle,
        state: StateFile,
        revoked: Callable[[], None],
    ) -> None:
        self._link = link
        self._intake = intake
        self._readings = readings
        self._attempts = attempts
        self._lifecycle = lifecycle
        self._state = state
        self._revoked = revoked

    def run(self) -> None:
        """Report until the agent ends, or its token is revoked."""
        retries = Retries()
        lifecycle = self._lifecycle
        while not lifecycle.is_ending and not lifecycle.is_revoked:
            said = [each.said() for each in self._attempts.all()]
            fields = {**self._readings(), "attempts": [each for each in said if each]}
            try:
                reply = self._link.post("/api/worker/sync", fields)
                order = orders_of(reply)
            except LinkError as error:
                self._state.report(str(error))
                lifecycle.pause(retries.failed(error.after))
                continue
            except RefusedError as error:
                if error.is_revoked:
                    self._revoked()
                    return
                self._state.report(f"the marketplace refuses the report of this device: {error}")
                lifecycle.pause(retries.failed())
                continue
            retries.succeeded()
            self._intake.carry_out(order)
            lifecycle.pause(min(_SYNC_SECONDS, order.lease_s / 4))

    def report_offline(self) -> None:
        """Report that the device goes offline, if no attempt runs on."""
        if len(self._attempts) or self._lifecycle.is_revoked:
            return
        try:
            self._link.post("/api/worker/offline", {})
        except (LinkError, RefusedError):
            return  # the daemon notices it after a while
