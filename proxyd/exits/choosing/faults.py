"""Memory of the faults of exits: for one buyer, for all, and of the sites where they happened.

The theory of operation is in `directory.py`.
"""

from typing import Final, Generic, final

from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.choosing.bounds import DirectoryBounds, make_room
from proxyd.exits.choosing.entries import Exit
from proxyd.exits.choosing.filing import Files
from proxyd.exits.choosing.standing import COOLING_MOST_SECONDS, Grudge, Standing
from proxyd.exits.choosing.wish import site_of

# How long the fault of an exit at a site is compared with the dials of other exits there.
SUSPECT_SECONDS: Final = 300.0
GONE_SECONDS: Final = COOLING_MOST_SECONDS

_CONNECTED: Final = DialOutcome.CONNECTED
# The exit's own doing. Everything else are the target's words.
_FAULTS: Final = (DialOutcome.PAUSED, DialOutcome.FAILED)


@final
class Faults(Generic[Exit]):
    """The records of exits, and the faults that are still to be explained.

    `grudges` are the faults of exits, by buyer and device.

    Args:
        files: the exits that are attached, with their records.
    """

    __slots__ = ("_blamed", "_bounds", "_files", "_gone", "_suspects", "_unproven", "grudges")

    def __init__(self, files: Files[Exit], bounds: DirectoryBounds) -> None:
        self._files = files
        self._bounds = bounds
        self.grudges: dict[tuple[str, str], Grudge] = {}
        # By site: the exit that failed there last, its buyer, and the end of the suspicion. No
        # exit: the fault was the site's.
        self._suspects: dict[str, tuple[str, str, float]] = {}
        # By site: the exit against which it counts for all, and until when against no other one.
        self._blamed: dict[str, tuple[str, float]] = {}
        # By target: the exit that sent a TLS client something else, its buyer, and until when.
        self._unproven: dict[str, tuple[str, str, float]] = {}
        self._gone: dict[str, tuple[Standing, float]] = {}

    def welcome(self, device_id: str) -> Standing:
        """Return the record of an exit that attaches: its former one, or an empty one."""
        return self._gone.pop(device_id, (Standing(), 0.0))[0]

    def remember(self, device_id: str, standing: Standing) -> None:
        """Keep the record of an exit that has gone, in case it comes back."""
        if standing.dials:
            make_room(self._gone, self._bounds.gone_total)
            self._gone[device_id] = standing, standing.noted_at + GONE_SECONDS

    def note(
        self,
        device_id: str,
        outcome: DialOutcome | None,
        now: float,
        began: float,
        buyer: str,
        target: str,
    ) -> None:
        """Record the outcome of a dial through an exit: see `Directory.note`."""
        site, standing = site_of(target), self._standing_of(device_id)
        standing.noted_at = now
        standing.has_failed = outcome is None or outcome in _FAULTS
        if standing.has_failed:
            self._blame(device_id, standing, buyer, site, now, began)
        elif outcome is _CONNECTED:
            standing.succeed()
            self._suspects.pop(site, None)
            self.grudges.pop((buyer, device_id), None)
        self._keep(device_id, standing)

    def contradict(self, device_id: str, now: float, buyer: str, target: str) -> None:
        """Note that another exit has reached a target that this one has called unreachable."""
        standing = self._standing_of(device_id)
        standing.noted_at = now
        standing.is_contradicted = True
        self._blame(device_id, standing, buyer, site_of(target), now, now)
        self._keep(device_id, standing)

    def suspect(self, device_id: str, now: float, buyer: str, target: str) -> None:
        """Note that an exit sent a TLS client something else: a fault for its buyer only."""
        self._bear_grudge(device_id, buyer, now, now)
        make_room(self._unproven, self._bounds.suspects_total)
        self._unproven[target] = device_id, buyer, now + SUSPECT_SECONDS

    def prove(self, device_id: str, now: float, target: str) -> None:
        """Note that an exit sent a TLS client TLS: another one's junk there is a fault for all."""
        other_id, buyer, until = self._unproven.get(target, ("", "", 0.0))
        if not other_id or other_id == device_id:
            return
        del self._unproven[target]
        if now < until:
            standing = self._standing_of(other_id)
            standing.noted_at = now
            standing.is_contradicted = True
            self._count_for_all(other_id, standing, buyer, site_of(target), now, now)
            self._keep(other_id, standing)

    def expire(self, now: float) -> None:
        """Forget the exits that have been gone for long."""
        for device_id in [each for each, (_, until) in self._gone.items() if until <= now]:
            del self._gone[device_id]

    def _blame(
        self,
        device_id: str,
        standing: Standing,
        buyer: str,
        site: str,
        now: float,
        began: float,
    ) -> None:
        """Count a fault, unless it is the site's."""
        first, its_buyer, until = self._suspects.pop(site, ("", "", 0.0))
        is_suspect = bool(site) and now < until
        if is_suspect and first != device_id:
            if first:
                self._standing_of(first).absolve(site)
                grudge = self.grudges.get((its_buyer, first))
                if grudge is not None:
                    grudge.forgive()
            first = its_buyer = ""
        else:
            has_counted = self._bear_grudge(device_id, buyer, now, began)
            first, its_buyer = device_id, buyer if has_counted else ""
            self._count_for_all(device_id, standing, buyer, site, now, began)
        if site:
            make_room(self._suspects, self._bounds.suspects_total)
            self._suspects[site] = first, its_buyer, now + SUSPECT_SECONDS

    def _bear_grudge(self, device_id: str, buyer: str, now: float, began: float) -> bool:
        make_room(self.grudges, self._bounds.grudges_total)
        return self.grudges.setdefault((buyer, device_id), Grudge()).fail(now, began)

    def _count_for_all(
        self,
        device_id: str,
        standing: Standing,
        buyer: str,
        site: str,
        now: float,
        began: float,
    ) -> None:
        """Count a fault for all buyers, unless its site counts against another exit."""
        if site:
            blamed, until = self._blamed.get(site, ("", 0.0))
            if blamed != device_id and now < until:
                return
            make_room(self._blamed, self._bounds.suspects_total)
            self._blamed[site] = device_id, now + SUSPECT_SECONDS
        standing.fail(site, buyer, now, began)

    def _standing_of(self, device_id: str) -> Standing:
        member = self._files.find(device_id)
        if member is not None:
            return member.standing
        standing, _ = self._gone.get(device_id, (Standing(), 0.0))
        return standing

    def _keep(self, device_id: str, standing: Standing) -> None:
        """Remember an exit that has gone meanwhile."""
        if device_id not in self._files:
            self._gone.pop(device_id, None)
            self.remember(device_id, standing)
