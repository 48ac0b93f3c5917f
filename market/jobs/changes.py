"""Changes of jobs: an attempt began, was ready, or ended, in this process."""

from collections.abc import Callable


class JobChanges:
    """Passes changes of jobs on: `Jobs` reports them here, and rollouts of deploys listen.

    Rollouts need `Jobs` to act, so neither can be given to the other. Both are given this.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the job of each change from now on; it neither waits nor raises."""
        self._listeners.append(changed)

    def changed(self, job_id: str) -> None:
        """Notify the listeners of a change of a job; the change is committed."""
        for changed in self._listeners:
            changed(job_id)
