"""Notifies the checks of exits of arrivals and suspicions at the listener."""

from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.listener import Watch


class Watchers:
    """Notifies each watch that has joined.

    A watch cuts exits at the listener, and the listener notifies it. So the listener is given this
    when it is built, and each watch joins.
    """

    def __init__(self) -> None:
        self._watches: list[Watch] = []

    def join(self, watch: Watch) -> None:
        """Notify a watch from now on."""
        self._watches.append(watch)

    def admit(self, attached: Attached) -> None:
        """See `Watch.admit`."""
        for watch in self._watches:
            watch.admit(attached)

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """See `Watch.suspect`."""
        for watch in self._watches:
            watch.suspect(attached, kind, evidence)
