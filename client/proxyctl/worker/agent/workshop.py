"""Makes the attempts of an agent, and keeps the tools that they share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from proxyctl.worker.attempt.attempt import Attempt, Tools
from proxyctl.worker.attempt.ready import Ready
from proxyctl.worker.attempt.sandboxes import BWRAP
from proxyctl.worker.attempt.supervisors import Supervisors
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.agent.device import Device
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Consent
    from proxyctl.worker.task.journal import Entry, Journal


class Workshop:
    """Makes attempts; `open` comes before the first one.

    Args:
        ended: called at the very end of an attempt, with its identifier.
        revoked: called when the marketplace does not know the token of this device.
    """

    def __init__(
        self,
        consent: Consent,
        link: Link,
        journal: Journal,
        device: Device,
        *,
        ended: Callable[[str], None],
        revoked: Callable[[], None],
    ) -> None:
        self.journal = journal
        self._consent = consent
        self._link = link
        self._device = device
        self._ended = ended
        self._revoked = revoked
        self._tools: Tools | None = None

    @property
    def tools(self) -> Tools:
        """The tools that attempts share, after `open`."""
        assert self._tools is not None  # noqa: S101 - `open` comes first
        return self._tools

    def open(self, folder: Path) -> None:
        """Start a supervisor in advance, and collect the tools.

        Raises:
            OSError: no supervisor can be started.
        """
        device = self._device
        self._tools = Tools(
            consent=self._consent,
            link=self._link,
            journal=self.journal,
            supervisors=Supervisors(folder, self._ready_maker(folder)),
            executor_for=device.executor_for,
            log_sender=device.log_sender,
            transfers=device.transfers,
            ports=device.ports,
            ended=self._ended,
            revoked=self._revoked,
        )

    def _ready_maker(self, folder: Path) -> Callable[[], Ready] | None:
        executor = self._device.executors.get(BWRAP)
        if not isinstance(executor, BwrapExecutor):
            return None
        return partial(Ready, executor, self._consent.lend, folder)

    def waiting(self) -> set[str]:
        """Return the names of the sandboxes that wait for an attempt."""
        return set() if self._tools is None else self._tools.supervisors.places()

    def make(self, entry: Entry, is_adopted: bool) -> Attempt:
        """Make an attempt from its entry; `is_adopted` marks an attempt of an earlier agent."""
        return Attempt(entry, self.tools, is_adopted=is_adopted)

    def tend(self) -> None:
        """Collect the supervisors that have ended, and have another one wait."""
        self.tools.supervisors.reap()
        self.tools.supervisors.replenish()

    def close(self) -> None:
        """Close the supervisor that waits."""
        self.tools.supervisors.close()
