"""Rules of labels: a lifetime is as long as its buyer said, and a strict label keeps its exit.

The lifetime of a label begins with the choice of its first exit, also if that is never reached. So
each choice of a dial is looked at, and not only the exits that connections leave through.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from proxyd.exits.choosing.bindings import Binding
    from proxyd.wire.wants import Wants
    from tests.sim.loop import World

# A connection takes this long from the choice of its exit to its relay at most.
_RELAY_SECONDS = 5.0

# A session, and all that tells its labels apart.
_Label = tuple[object, ...]


class _Kept(NamedTuple):
    """The exit of a strict label at a process.

    Attributes:
        device_id: the exit.
        since: of its first use, on the clock of the process's loop.
        until: the end of its lifetime, on the same clock.
    """

    device_id: str
    since: float
    until: float


class LabelBooks:
    """Watches the labels of a run.

    Args:
        world: the time.
        is_healthy: returns whether no fault held since a time, nor for long enough before it.
    """

    def __init__(self, world: "World", is_healthy: Callable[[float], bool]) -> None:
        self._world = world
        self._is_healthy = is_healthy
        # By the run of a process and a label.
        self._kept: dict[tuple[str, _Label], _Kept] = {}
        # By label: when a use that is not strict has moved it.
        self._moved_at: dict[_Label, float] = {}

    def watched(self, directory: Any, name: str) -> Any:
        """Return the directory for the dials of a process."""
        return _Watched(directory, name, self)

    def chosen(
        self,
        name: str,
        label: _Label,
        wants: "Wants",
        before: "tuple[Binding, str] | None",
        after: "Binding | None",
        now: float,
    ) -> None:
        """A process has chosen an exit for a label, which may have bound or moved it.

        Args:
            name: the run of the process.
            label: the key of the label (`label_of`).
            wants: the buyer's wishes.
            before: the binding until now, and its exit.
            after: the binding from now on.
            now: on the clock of the process's loop.
        """
        what = f"{name} binds {wants.session}"
        if after is None:
            return
        if before is None or after is not before[0]:
            if before is not None and now < before[0].until:
                self._world.fail(f"{what} anew, {before[0].until - now:.1f} s before its end")
            if after.until != now + wants.lifetime_seconds:
                self._world.fail(f"{what} for {after.until - now}, not {wants.lifetime_seconds} s")
        elif after.device_id != before[1]:
            if wants.strict:
                self._world.fail(f"{what}, which is strict, to {after.device_id}")
            self._moved_at[label] = self._world.now
            for each in [each for each in self._kept if each[1] == label]:
                del self._kept[each]

    def uses(
        self,
        name: str,
        label: _Label,
        device_id: str,
        binding: "Binding | None",
        now: float,
    ) -> None:
        """A connection leaves through the exit of a strict label.

        It may have been chosen before the present lifetime of the label. A node that binds a label
        alone takes over the exit of the others later.
        """
        key = name, label
        if not self._is_healthy(self._world.now):
            self._kept.pop(key, None)
            return
        kept = self._kept.get(key)
        if kept is not None and kept.device_id != device_id:
            if now < kept.until and now - kept.since > _RELAY_SECONDS:
                self._world.fail(f"{name} moves the strict label {label} to {device_id}")
            kept = None
        is_settled = self._world.now - self._moved_at.get(label, -_RELAY_SECONDS) >= _RELAY_SECONDS
        if is_settled and binding is not None and binding.device_id == device_id:
            since = now if kept is None else kept.since
            self._kept[key] = _Kept(device_id, since, binding.until)


class _Watched:
    """The directory of a process: each choice for a label is shown to the rules.

    Args:
        directory: the product's.
        name: the run of the process.
        books: the rules.
    """

    def __init__(self, directory: Any, name: str, books: LabelBooks) -> None:
        self._directory = directory
        self._name = name
        self._books = books

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    def pick(self, wants: "Wants", *, session_id: str, now: float, **others: Any) -> Any:
        """See `Directory.pick`."""
        directory = self._directory
        binding = directory.binding(wants, session_id)
        before = None if binding is None else (binding, binding.device_id)
        chosen = directory.pick(wants, session_id=session_id, now=now, **others)
        if wants.session:
            after = directory.binding(wants, session_id)
            label = label_of(wants, session_id)
            self._books.chosen(self._name, label, wants, before, after, now)
        return chosen


def label_of(wants: "Wants", session_id: str) -> _Label:
    """Return the key of a label: the same one for another place is another label."""
    place = wants.countries, wants.state, wants.city, wants.asn, wants.kind
    return session_id, wants.session, *place
