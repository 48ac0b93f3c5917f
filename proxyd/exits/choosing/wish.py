"""Requirements of one connection on its exit.

The theory of operation is in `directory.py`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Generic, final

from proxyctl.protocol.frames import UDP
from proxyd.exits.choosing.entries import ANY_PORT, Exit
from proxyd.exits.choosing.filing import Area, Member
from proxyd.exits.choosing.standing import Grudge
from proxyd.wire.wants import Wants

MINUTE_SECONDS: Final = 60
SITES_CACHED: Final = 4096

# Under these labels of a country's domain anybody registers names.
_KINDS: Final = frozenset(
    [
        "ac",
        "co",
        "com",
        "edu",
        "go",
        "gob",
        "gouv",
        "gov",
        "gv",
        "ltd",
        "me",
        "mil",
        "ne",
        "net",
        "nom",
        "or",
        "org",
        "plc",
        "sch",
    ]
)


@final
class Wish(Generic[Exit]):
    """Requirements of one connection on its exit.

    `others` are the devices that must not carry it: the tried ones, and the last one of a session
    that rotates. `port` and the countries of `area` may be changed.

    Args:
        owner_id: the buyer's account, whose own exits are out of the question.
        price_per_gb: the price of the session, in micro-USD.
        target: the name or address to be dialled.
        tried: the devices that could not carry this connection.
        now: seconds of a clock that never goes back.
        features: features that the exit must offer beyond connections.
        port: the target's port; `ANY_PORT` for any port.
        grudges: the faults of exits, by buyer and device.
    """

    __slots__ = (
        "area",
        "features",
        "grudges",
        "is_bound",
        "is_datagrams",
        "minute",
        "now",
        "others",
        "owner_id",
        "port",
        "price_per_gb",
        "site",
    )

    def __init__(
        self,
        area: Area,
        owner_id: str,
        price_per_gb: int,
        target: str,
        tried: Sequence[str],
        now: float,
        features: frozenset[str],
        port: int,
        grudges: dict[tuple[str, str], Grudge],
    ) -> None:
        self.area = area
        self.owner_id = owner_id
        self.price_per_gb = price_per_gb
        self.features = features
        self.is_datagrams = UDP in features
        self.port = port
        self.is_bound = False  # to the exit that is looked at
        self.grudges = grudges
        self.others = tried
        self.now = now
        self.minute = int(now) // MINUTE_SECONDS
        self.site = site_of(target)

    def takes(self, member: Member[Exit]) -> bool:
        """Return whether an exit meets the wish."""
        return self.is_free(member) and self.area.has(member.place)

    def is_free(self, member: Member[Exit]) -> bool:
        """Return whether an exit can be chosen for this connection; its place is not checked."""
        entry = member.entry
        device_id = entry.device_id
        return (
            member.standing.rest.until <= self.now
            and self.is_offered_by(entry)
            and device_id not in self.others
            and not (self.grudges and self.rests_for_buyer(device_id))
            and (self.is_bound or not member.elders or not self.is_offered_earlier(member))
            and entry.has_place_for(self.owner_id, datagrams=self.is_datagrams)
        )

    def is_offered_by(self, entry: Exit) -> bool:
        """Return whether an exit offers such connections, even if it is full or rests now."""
        return (
            (not self.features or self.features.issubset(entry.features))
            and entry.min_price_per_gb <= self.price_per_gb
            and entry.owner_id != self.owner_id
            and (not self.port or entry.allows(self.port))
        )

    def is_offered_earlier(self, member: Member[Exit]) -> bool:
        """Return whether an older exit on the same line carries such connections.

        An older exit that is full does: more devices give a line no more places. An older exit
        that rests, after failures or for the rest of the day, does not.
        """
        for elder in member.elders:
            rests = elder.standing.rest.until > self.now or elder.entry.is_spent
            if not rests and self.is_offered_by(elder.entry):
                return True
        return False

    def rests_for_buyer(self, device_id: str) -> bool:
        """Return whether an exit has failed too often for this buyer."""
        grudge = self.grudges.get((self.owner_id, device_id))
        return grudge is not None and grudge.rest.until > self.now

    def takes_for_any_port(self, member: Member[Exit]) -> bool:
        """Return whether an exit meets the wish, if the port is ignored."""
        port, self.port = self.port, ANY_PORT
        takes = self.takes(member)
        self.port = port
        return takes

    def keeps(self, member: Member[Exit], *, is_strict: bool) -> bool:
        """Return whether a label keeps its exit although the exit takes no connection now.

        It does when the exit failed because of the target, and a strict one when the exit is full.
        """
        entry = member.entry
        if entry.device_id in self.others:
            return not member.standing.has_failed
        return is_strict and not entry.has_place_for(self.owner_id, datagrams=self.is_datagrams)


def area_of(wants: Wants) -> Area:
    """Return the places that a buyer wants exits in."""
    return Area(wants.countries, wants.state, wants.city, wants.asn, wants.kind)


@lru_cache(maxsize=SITES_CACHED)
def site_of(target: str) -> str:
    """Return the site of a target, for counts of connections: its /24, /48 or domain.

    A domain is taken for the last two labels of a name, or three where these are a country's and a
    kind, as in `co.uk`. Where that is wrong, a site is counted with others: a name that gave many
    sites would cost its owner nothing.
    """
    if ":" in target:
        return ":".join(target.split(":", 3)[:3])
    if target[-1:].isdigit():
        return target.rpartition(".")[0]
    labels = target.rsplit(".", 3)
    has_kind = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _KINDS
    return ".".join(labels[-3:] if has_kind else labels[-2:])
