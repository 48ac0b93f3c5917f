"""Directory of the attached exits; it chooses the exit of each connection.

Theory of operation
-------------------
Pure: the clock is handed in, and so is chance. Every active exit stands in buckets: one of all
exits, one of its country, its state, its city and its network's number, each of these once more for
its kind, and all of them once more if it carries datagrams, which few do. A wish is answered out of
the smallest bucket that holds all exits it can mean. Requirements that the bucket does not ensure
are checked at each exit that is looked at (`Wish.takes`). A bucket is kept in the order of its
exits' hashes, as a ring.

Without a label two exits that will do are drawn, and the better one is taken (`Standing.weight`).
That spreads connections nearly evenly. Its cost depends on the share of the exits that will do, not
on the number of exits; of few exits, each is drawn once at most. When draws find none, a bounded
part of the bucket is searched from end to end. An overdue exit is taken only where the draws find
no other: more dials wait for it than its owner lets it begin in a second. The same holds for an
exit that is worn at the site (`Picks.is_worn`).

A label is bound to its exit until its lifetime ends. Its first exit is found without chance: the
label's own hash says where on the ring to look. So a daemon that was restarted finds the same exits
again, although bindings are kept in memory only. While the exit of a label is away,

* a soft label moves to another exit, of the same country if there is one, and stays there;
* a strict one has none, until its exit is back or its lifetime is over.

An owner can allow some ports of targets only. An exit is not chosen for a connection to a port that
its owner does not allow. The first exit of a label is one that allows the port of the label's first
connection; from then on, ports that this exit does not allow are refused.

A label keeps an exit that could not reach the target: a target that does not answer must not cost
the buyer an address.

Exits on one line stand behind the one that has been attached for longest: another one is chosen
only for a connection that no older one of the line offers to carry, by its price, ports, features
and owner. An older one that is full holds others back, and one that rests does not. So an owner
does not earn more by attaching more devices to one line, and an exit that no buyer can use blocks
no other exit. A label keeps its exit when an older one on the line is back. A line is an IPv4
address or an IPv6 /56; devices of one account in an IPv6 /48 are also on one line. An exit that has
attached from elsewhere is behind all others of the line, although its calls leave from the line
(`origin.py`). The exits may be attached to any of several nodes: the order depends on
`is_elsewhere`, `since` and the device alone, so that all nodes choose the same one.

The record of an exit (`Standing`) is kept for a while after the exit has gone: an exit that fails
rests, and longer each time, also if it comes back in between. A target can make an exit fail, and a
buyer chooses targets. So

* the faults of an exit that one buyer meets have it rest for that buyer alone (`Grudge`);
* an exit rests for all buyers when it has failed at several sites, for a different buyer at each;
* the dials that were under way at the last fault have the same cause, such as a line that stood
  still for a second, and count no more;
* when a second exit fails at a site, the faults there are the site's, and count no more;
* for all a site counts against one exit in five minutes, because it chooses which exits it answers:
  a few sites would otherwise have every exit rest (`Faults._count_for_all`);
* a full exit is not at fault, and neither is an exit at its owner's limit of dials per second;
* an exit that sends a TLS client something else is at fault for that buyer alone, until another
  exit gets TLS from the same target (`suspect`, `prove`): a target can send anything.

A target's refusal that another exit contradicts also counts as a fault. The word of an exit is
checked (`doubts`) while that is new, after a contradiction, and now and then.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from random import Random
from typing import Final, Generic, final

from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.choosing.bindings import Binding, Bindings, ring_of
from proxyd.exits.choosing.bounds import USUAL, DirectoryBounds
from proxyd.exits.choosing.entries import ANY_PORT, NO_FEATURES, Exit, Missing, Region
from proxyd.exits.choosing.faults import Faults
from proxyd.exits.choosing.filing import HASH_MASK, Bucket, Files, Member, bucket_at
from proxyd.exits.choosing.past_picks import Picks
from proxyd.exits.choosing.standing import NEWCOMER_DIALS
from proxyd.exits.choosing.wish import Wish, area_of
from proxyd.wire.wants import Wants

DRAWS: Final = 32  # if 10 % of the exits will do, these draws find one in all but one of 30 cases
# A label takes one of 8 neighbours on the ring: gaps between hashes are uneven, and an exit after a
# wide gap would otherwise have many times the labels of another.
NEIGHBOURS: Final = 8
# Share of the comparisons that the worse exit wins. Without it newcomers would stay unknown, and a
# bad exit that has become good would never be chosen again.
EXPLORED_SHARE: Final = 0.1
# The share of refusals that a second exit checks: each costs a dial and some time.
CHECKED_SHARE: Final = 0.1

_MIXING: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: low bits decide about high ones


@final
class Directory(Generic[Exit]):
    """The exits that are attached; see the theory above.

    Args:
        chance: returns numbers from 0 to below 1; tests hand in a seeded one.
    """

    __slots__ = ("_bindings", "_bounds", "_chance", "_faults", "_files", "_picks")

    def __init__(
        self, chance: Callable[[], float] | None = None, bounds: DirectoryBounds = USUAL
    ) -> None:
        self._bounds = bounds
        self._chance = chance or Random().random  # noqa: S311 - it spreads load, and hides nothing
        self._files: Files[Exit] = Files()
        self._faults: Faults[Exit] = Faults(self._files, bounds)
        self._bindings = Bindings(bounds)
        self._picks = Picks(bounds)

    def __len__(self) -> int:
        """Return the number of exits that are the first on their lines."""
        return self._files.lines()

    # --- the exits -----------------------------------------------------------------------------

    def add(self, entry: Exit) -> None:
        """Add an exit to choose from; it replaces an older attachment of the same device."""
        older = self.get(entry.device_id)
        if older is not None:
            self.remove(older)
        self._files.add(Member(entry, self._faults.welcome(entry.device_id)))

    def remove(self, entry: Exit) -> None:
        """Remove an exit from the choice; an absent exit changes nothing."""
        member = self._files.find(entry.device_id)
        if member is not None and member.entry is entry:
            self._faults.remember(entry.device_id, member.standing)
            self._files.remove(member)

    def move(self, entry: Exit) -> None:
        """File an exit again: its place has changed."""
        member = self._files.find(entry.device_id)
        if member is not None and member.entry is entry:
            self._files.move(member)

    def get(self, device_id: str) -> Exit | None:
        """Return the exit of a device; None when it is away."""
        member = self._files.find(device_id)
        return None if member is None else member.entry

    def watch(self, changed: Callable[[Exit], None]) -> None:
        """Call `changed` with each exit that becomes a standby on its line, or stops being one."""
        self._files.watch(changed)

    def is_standby(self, entry: Exit) -> bool:
        """Return whether an exit only carries connections that no older one on its line offers."""
        member = self._files.find(entry.device_id)
        return member is not None and member.entry is entry and bool(member.elders)

    def coverage(self) -> dict[Region, int]:
        """Return the number of lines that have exits, by region."""
        return self._files.regions()

    # --- the choice ----------------------------------------------------------------------------

    def pick(
        self,
        wants: Wants,
        *,
        session_id: str,
        owner_id: str,
        price_per_gb: int,
        target: str,
        tried: Sequence[str],
        now: float,
        features: frozenset[str] = NO_FEATURES,
        port: int = ANY_PORT,
    ) -> Exit | Missing:
        """Choose an exit for one connection.

        Args:
            wants: the buyer's requirements on it.
            session_id: the session of the label, if there is one.
            owner_id: the buyer's account, whose own exits are out of the question.
            price_per_gb: the price of the session, in micro-USD.
            target: the name or address to be dialled: no exit is worn out on one site.
            tried: the devices that could not carry this connection.
            now: seconds of a clock that never goes back, the same one in all calls.
            features: features that the exit must offer beyond connections.
            port: the target's port; `ANY_PORT` for any port, as of datagrams, which name their own.
        """
        area, grudges = area_of(wants), self._faults.grudges
        wish: Wish[Exit] = Wish(
            area, owner_id, price_per_gb, target, tried, now, features, port, grudges
        )
        self._picks.begin(wish.minute)
        if wants.session:
            chosen = self._of_label(wants, wish, session_id)
        elif wants.rotate:
            chosen = self._rotated(wish, session_id)
        else:
            chosen = self._drawn(wish)
        if isinstance(chosen, Missing):
            return chosen
        entry = chosen.entry
        chosen.standing.count(wish.minute)
        self._picks.count(entry.device_id, wish.site)
        return entry

    def note(
        self,
        entry: Exit,
        outcome: DialOutcome | None,
        now: float,
        *,
        began: float,
        buyer: str,
        target: str,
    ) -> None:
        """Record the outcome of a dial through an exit.

        Args:
            entry: the exit.
            outcome: its answer; None if it was lost.
            now: as for `pick`.
            began: when the exit was chosen for the dial.
            buyer: the account that the dial was for.
            target: the name or address that was dialled.
        """
        self._faults.note(entry.device_id, outcome, now, began, buyer, target)

    def contradict(self, entry: Exit, now: float, *, buyer: str, target: str) -> None:
        """Note that another exit has reached a target that this one has called unreachable."""
        self._faults.contradict(entry.device_id, now, buyer, target)

    def suspect(self, entry: Exit, now: float, *, buyer: str, target: str) -> None:
        """Note that an exit sent a TLS client something else: a fault for its buyer only."""
        self._faults.suspect(entry.device_id, now, buyer, target)

    def prove(self, entry: Exit, now: float, *, target: str) -> None:
        """Note that an exit sent a TLS client TLS: another one's junk there is a fault for all."""
        self._faults.prove(entry.device_id, now, target)

    def doubts(self, entry: Exit) -> bool:
        """Return whether a second exit should check a target's refusal."""
        member = self._files.find(entry.device_id)
        if member is None:
            return False
        standing = member.standing
        is_new = standing.dials < NEWCOMER_DIALS or standing.is_contradicted
        return is_new or self._chance() < CHECKED_SHARE

    def binding(self, wants: Wants, session_id: str) -> Binding | None:
        """Return the binding of a label; None for one that is not known."""
        return self._bindings.get(wants, session_id)

    def bindings(self, session_id: str) -> list[Binding]:
        """Return all bindings of a session."""
        return self._bindings.of_session(session_id)

    def adopt(self, wants: Wants, session_id: str, binding: Binding, holder: str) -> None:
        """Bind a new label to the exit that other nodes chose, for the holder's account."""
        self._bindings.add(wants, session_id, binding, holder)

    def take_move(self, wants: Wants, session_id: str) -> bool:
        """Return whether a label has another exit than before; each move is returned once.

        The caller passes the answer on to the buyer, with the exit.
        """
        binding = self._bindings.get(wants, session_id) if wants.session else None
        if binding is None:
            return False
        has_moved, binding.has_moved, binding.is_used = binding.has_moved, False, True
        return has_moved

    def forget(self, session_id: str) -> None:
        """Forget a session that is over: its bindings and its last exit."""
        self._bindings.forget(session_id)
        self._picks.forget(session_id)

    def expire(self, now: float) -> None:
        """Forget rows whose time is over, or some of them; call it every few seconds.

        It only saves memory: a label whose lifetime is over is seen to be so anyway.
        """
        self._faults.expire(now)
        self._bindings.expire(now)

    # --- drawn by chance -----------------------------------------------------------------------

    def _drawn(self, wish: Wish[Exit]) -> Member[Exit] | Missing:
        """Return the better of two suitable exits."""
        buckets, total = self._buckets_of(wish), 0
        for bucket in buckets:
            total += len(bucket.members)
        first = self._one_of(wish, buckets, total) if total else None
        if first is None:
            return self._none(wish)
        # Where all draws have found only exits that are worn or behind, more would be in vain.
        if total == 1 or self._is_second_choice(first, wish):
            return first
        second = self._one_of(wish, buckets, total)
        if second is None or second is first or self._chance() < EXPLORED_SHARE:
            return first
        is_better = second.standing.weight(wish.minute) > first.standing.weight(wish.minute)
        return second if is_better else first

    def _one_of(
        self, wish: Wish[Exit], buckets: Sequence[Bucket[Exit]], total: int
    ) -> Member[Exit] | None:
        """Return a suitable exit by chance, preferably one that is neither worn nor behind."""
        chance = self._chance
        # The exits of a bucket are in one of the countries, and of the kind.
        takes = wish.takes if wish.area.is_fine else wish.is_free
        members = buckets[0].members
        if len(buckets) > 1:  # of several countries one, as often as it has exits
            members = bucket_at(buckets, int(chance() * total)).members
        size, worn = len(members), None
        is_small = size <= DRAWS
        if is_small:  # each is drawn once at most
            members = members[:]
        for _ in range(min(size, DRAWS)):
            at = int(chance() * size)
            member = members[at]
            if takes(member):
                if not self._is_second_choice(member, wish):
                    return member
                worn = member
            if is_small:
                size -= 1
                members[at] = members[size]
        if worn is not None or (is_small and len(members) == total):  # no exit is left to look at
            return worn
        return next(filter(takes, self._walk(buckets, total, int(chance() * total))), None)

    def _is_second_choice(self, member: Member[Exit], wish: Wish[Exit]) -> bool:
        """Return whether an exit is to be taken only where there is no other."""
        entry = member.entry
        return entry.is_behind or self._picks.is_worn(entry.device_id, wish.site)

    def _walk(
        self, buckets: Sequence[Bucket[Exit]], total: int, start: int
    ) -> Iterator[Member[Exit]]:
        """Yield exits in turn, as if the buckets were one ring; of many exits, only a part."""
        left = min(total, self._bounds.searched_max)
        for bucket in (*buckets, *buckets):
            part = bucket.members[start : start + left]
            start -= min(start, len(bucket.members))
            left -= len(part)
            yield from part

    def _none(self, wish: Wish[Exit]) -> Missing:
        """Return why no exit is suitable: because of the port only, or for more reasons."""
        if wish.port:
            wish.port = ANY_PORT
            buckets = self._buckets_of(wish)
            total = sum([len(bucket.members) for bucket in buckets])
            if any(wish.takes(member) for member in self._walk(buckets, total, 0)):
                return Missing.NOT_ALLOWED
        return Missing.NO_EXIT

    def _rotated(self, wish: Wish[Exit], session_id: str) -> Member[Exit] | Missing:
        """Return another exit than the session's last one."""
        last = self._picks.last_of(session_id)
        if last:
            wish.others = (*wish.others, last)
        chosen = self._drawn(wish)
        if isinstance(chosen, Member):
            self._picks.rotate(session_id, chosen.entry.device_id)
        return chosen

    def _buckets_of(self, wish: Wish[Exit]) -> Sequence[Bucket[Exit]]:
        """Return the smallest buckets that hold all exits that a wish can match."""
        return self._files.buckets_of(wish.area, datagrams=wish.is_datagrams)

    # --- labels --------------------------------------------------------------------------------

    def _of_label(self, wants: Wants, wish: Wish[Exit], session_id: str) -> Member[Exit] | Missing:
        """Return the exit of a label. Bind the label if it has none, or may move."""
        binding = self._bindings.get(wants, session_id)
        if binding is None or wish.now >= binding.until:
            lifetimes = 0 if binding is None else binding.lifetimes + 1
            return self._first(wants, wish, session_id, lifetimes)
        member = self._files.find(binding.device_id)
        wish.is_bound = True
        if member is not None and wish.takes(member):
            return member
        if member is not None and wish.takes_for_any_port(member):
            return Missing.NOT_ALLOWED  # a label keeps its exit, also for ports that it refuses
        wish.is_bound = False
        if member is not None and (
            wish.keeps(member, is_strict=wants.strict)
            or not wish.features.issubset(member.entry.features)  # the same
        ):
            return Missing.NO_EXIT
        if wants.strict:
            return Missing.EXIT_LOST
        return self._moved(wish, binding, ring_of(session_id, wants.session, binding.lifetimes))

    def _first(
        self, wants: Wants, wish: Wish[Exit], session_id: str, lifetimes: int
    ) -> Member[Exit] | Missing:
        """Bind a label whose lifetime begins now."""
        member = self._on_ring(wish, ring_of(session_id, wants.session, lifetimes))
        if member is None:
            return self._none(wish)
        until = wish.now + wants.lifetime_seconds
        binding = Binding(member.entry.device_id, member.place.country, until, lifetimes)
        self._bindings.add(wants, session_id, binding, wish.owner_id)
        return member

    def _moved(self, wish: Wish[Exit], binding: Binding, ring: int) -> Member[Exit] | Missing:
        """Bind a label to another suitable exit, of the same country if possible."""
        area = wish.area
        countries = area.countries
        area.countries = (binding.country,) if binding.country else countries
        member = self._on_ring(wish, ring)
        if member is None and area.countries != countries:
            area.countries = countries
            member = self._on_ring(wish, ring)
        if member is None:
            return self._none(wish)
        binding.device_id = member.entry.device_id
        binding.has_moved = True
        return member

    def _on_ring(self, wish: Wish[Exit], ring: int) -> Member[Exit] | None:
        """Return the exit at a hash: always the same one while the same exits are attached."""
        around = merge(*[bucket.around(ring) for bucket in self._buckets_of(wish)])
        near: list[Member[Exit]] = []
        # A loop, because the compiler makes a list of a generator expression: all would be judged.
        for _, _, member in islice(around, self._bounds.searched_max):
            if wish.takes(member):
                near.append(member)
                if len(near) == NEIGHBOURS:
                    break
        return max(
            near,
            key=lambda member: ((member.ring ^ ring) * _MIXING) & HASH_MASK,
            default=None,
        )
