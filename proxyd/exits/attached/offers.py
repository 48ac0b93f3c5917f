"""The offer of each exit, for the directory, other nodes, its owner and its own agent."""

from collections import Counter
from typing import Any, final

from proxyd.exits.attached.attached import HELD, STANDBY, Attached
from proxyd.exits.attached.detached import Detached
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.roster import Roster
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Entry


@final
class Offers:
    """Passes on the offers of exits, and answers questions about them."""

    def __init__(self, roster: Roster, directory: Directory[Any], neighbours: Neighbours) -> None:
        self._roster = roster
        self._directory = directory
        self._neighbours = neighbours

    def by_country(self) -> Counter[str]:
        """Return the number of exits that take connections, by country; "": not known."""
        counts: Counter[str] = Counter()
        for region, number in self._directory.coverage().items():
            counts[region.country] += number
        return counts

    def state(self, device_id: str) -> str | None:
        """Return why an attached device carries nothing now, "" if it does, None if it is away."""
        attached = self._roster.by_device.get(device_id)
        if attached is None:
            return None
        if attached.is_spent:
            return "the bytes of the day are used up"
        if attached.location.astray:
            return attached.location.astray
        if self._directory.is_standby(attached):
            return STANDBY
        return attached.why_not

    def remark(self, device_id: str) -> str:
        """Return a remark for the owner of an attached device; "" for nothing."""
        attached = self._roster.by_device.get(device_id)
        if attached is None:
            return ""
        words = []
        if attached.is_elsewhere:
            words.append(
                f"Its connections leave from {attached.address}, and it counts as being there."
            )
        if not attached.is_proven:
            words.append("It carries port 443 alone until it has passed a look at what it carries.")
        return " ".join(words)

    def begin(self, attached: Attached) -> None:
        """Pass on that an exit has attached."""
        self._neighbours.attached(attached)
        if attached.is_open:
            self._directory.add(attached)
        self._say_limits(attached)

    def change(self, attached: Attached, *, was_open: bool) -> None:
        """Pass on that an exit begins or stops taking connections."""
        self._neighbours.changed(attached)
        if was_open and not attached.is_open:
            self._directory.remove(attached)
        elif attached.is_open and not was_open:
            self._directory.add(attached)
        self._say_limits(attached)

    def end(self, attached: Attached) -> None:
        """Pass on that an exit is gone."""
        if attached.is_open:
            self._directory.remove(attached)
        self._neighbours.gone(attached)

    def standby_changed(self, entry: Entry) -> None:
        """Notify an exit that it has become a standby on its line, or has stopped being one."""
        attached = self._roster.by_device.get(entry.device_id)
        if attached is not None and attached is entry:  # or it is another node's
            self._say_limits(attached)

    def _say_limits(self, attached: Attached) -> None:
        """Send an exit its limits, and the reason why it rests, if either has changed."""
        words = HELD if attached.terms.is_held else ""
        if not words and self._directory.is_standby(attached):
            words = STANDBY
        if words != attached.granted.paused:
            attached.grant(attached.granted._replace(paused=words))
            self._roster.control_of(attached).send(attached.granted)


@final
class Verdicts:
    """Executes verdicts on the honesty of exits."""

    def __init__(self, roster: Roster, neighbours: Neighbours, detached: Detached) -> None:
        self._roster = roster
        self._neighbours = neighbours
        self._detached = detached

    def prove(self, attached: Attached) -> None:
        """Let an exit carry all connections that its owner allows."""
        if not attached.is_proven:
            attached.terms.prove(is_proven=True)
            self._neighbours.changed(attached)

    def doubt(self, attached: Attached) -> None:
        """Let an exit carry only port 443, until it is proven."""
        if attached.is_proven and not attached.is_gone:
            attached.terms.prove(is_proven=False)
            self._neighbours.changed(attached)

    def expel(self, attached: Attached, words: str) -> None:
        """Cut an exit with all that goes through it; `words` give its owner the reason."""
        if attached.is_gone:
            self._detached.cut(attached.device_id)
        else:
            self._roster.control_of(attached).refuse("exit_barred", words, 0)
