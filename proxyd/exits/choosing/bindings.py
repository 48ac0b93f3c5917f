"""Bindings of labels to exits, and their bounds by session and by account.

The theory of operation is in `directory.py`.
"""

from itertools import islice
from typing import Final, final

from proxyd.exits.choosing.bounds import DirectoryBounds, make_room
from proxyd.exits.choosing.entries import hash_of
from proxyd.wire.wants import Wants

# After its lifetime: a buyer that uses the label again before then gets another exit than before.
LABEL_KEPT_SECONDS: Final = 3600.0

# Key of a label within its session: the same one for another place is another label.
_Label = tuple[str, tuple[str, ...], str, str, int, str]


@final
class Binding:
    """The exit of a label, until a time.

    `country` is the place of its first exit. `lifetimes` counts those that are over: each begins
    elsewhere on the ring. `is_used` says that the buyer has left through it, and `has_moved` that
    the label has another exit than before and its buyer does not know it yet.

    Where several nodes agree on exits (`exits/choosing/labels.py`), these know the label by
    `label`. `agreed_id` is the device that was agreed on last, and `agreement` says whether that
    still counts.
    """

    __slots__ = (
        "agreed_id",
        "agreement",
        "country",
        "device_id",
        "has_moved",
        "is_used",
        "label",
        "lifetimes",
        "until",
    )

    def __init__(self, device_id: str, country: str, until: float, lifetimes: int) -> None:
        self.device_id = device_id
        self.country = country
        self.until = until
        self.lifetimes = lifetimes
        self.has_moved = False
        self.is_used = False
        self.label = ""
        self.agreed_id = ""
        self.agreement = 0


@final
class Bindings:
    """The bindings of all sessions."""

    __slots__ = ("_bounds", "_by_session", "_held", "_holders", "_total", "_unswept")

    def __init__(self, bounds: DirectoryBounds) -> None:
        self._bounds = bounds
        self._by_session: dict[str, dict[_Label, Binding]] = {}
        self._total = 0  # bindings of all sessions
        self._holders: dict[str, str] = {}  # the account of each of these sessions
        self._held: dict[str, int] = {}  # the number of labels of each account
        self._unswept: list[str] = []  # sessions

    def get(self, wants: Wants, session_id: str) -> Binding | None:
        """Return the binding of a label; None for one that is not known."""
        return self._by_session.get(session_id, {}).get(_label(wants))

    def of_session(self, session_id: str) -> list[Binding]:
        """Return all bindings of a session."""
        return [*self._by_session.get(session_id, {}).values()]

    def add(self, wants: Wants, session_id: str, binding: Binding, holder: str) -> None:
        """Keep a binding, within the bounds; the oldest bindings of a session are dropped first.

        Of all sessions the holders with the most labels lose some first, so that no holder loses
        a label to one with more.
        """
        label = _label(wants)
        labels = self._by_session.setdefault(session_id, {})
        holder = self._holders.setdefault(session_id, holder)
        before = len(labels)
        labels.pop(label, None)
        make_room(labels, self._bounds.labels_per_session)
        labels[label] = binding
        self._count(holder, len(labels) - before)
        if self._total > self._bounds.labels_total:
            self._evict()

    def forget(self, session_id: str) -> None:
        """Drop all bindings of a session that is over."""
        self._drop(session_id, len(self._by_session.get(session_id, ())))

    def expire(self, now: float) -> None:
        """Drop bindings that have been over for long, of a part of the sessions."""
        if not self._unswept:
            self._unswept = list(self._by_session)
        seen = 0
        while self._unswept and seen < self._bounds.labels_per_sweep:
            session_id = self._unswept.pop()
            labels = self._by_session.get(session_id)
            if labels is not None:
                seen += len(labels)
                self._expire(session_id, labels, now)

    def _evict(self) -> None:
        """Drop a quarter of all labels: the oldest of each holder beyond one bound for all."""
        most = self._bounds.labels_total - self._bounds.labels_total // 4
        low, high = 0, max(self._held.values())
        while low < high:  # the most that all may keep
            middle = (low + high + 1) // 2
            if sum([min(each, middle) for each in self._held.values()]) <= most:
                low = middle
            else:
                high = middle - 1
        surplus = {holder: held - low for holder, held in self._held.items() if held > low}
        for session_id in tuple(self._by_session):
            left = surplus.get(self._holders[session_id], 0)
            if left > 0:
                dropped = min(left, len(self._by_session[session_id]))
                surplus[self._holders[session_id]] = left - dropped
                self._drop(session_id, dropped)

    def _drop(self, session_id: str, number: int) -> None:
        """Drop the oldest labels of a session."""
        labels = self._by_session.get(session_id)
        if labels is None:
            return
        for label in list(islice(labels, number)):
            del labels[label]
        self._count(self._holders[session_id], -number)
        if not labels:
            del self._by_session[session_id], self._holders[session_id]

    def _count(self, holder: str, more: int) -> None:
        self._total += more
        held = self._held.get(holder, 0) + more
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def _expire(self, session_id: str, labels: dict[_Label, Binding], now: float) -> None:
        old = [
            each for each, binding in labels.items() if binding.until + LABEL_KEPT_SECONDS <= now
        ]
        for label in old:
            del labels[label]
        self._count(self._holders[session_id], -len(old))
        if not labels:
            del self._by_session[session_id], self._holders[session_id]


def ring_of(session_id: str, label: str, lifetimes: int) -> int:
    """Return the position on the ring where a label begins to look, in one of its lifetimes."""
    return hash_of(f"{session_id} {label} {lifetimes}")


def _label(wants: Wants) -> _Label:
    return wants.session, wants.countries, wants.state, wants.city, wants.asn, wants.kind
