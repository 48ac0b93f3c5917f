"""Plans of the devices that attach as exits, of their owners, and of the clients that use them."""

import hashlib
from dataclasses import dataclass, replace
from random import Random

from market.exits.consents import ExitDeviceLimits
from proxyd.wire.wants import Wants
from tests.sim.clients import ClientPlan, SessionPlan
from tests.sim.exit_ports import TARGETS
from tests.sim.faults import Fault
from tests.sim.focus import FAST

DEVICES_MOST = 6
OWNERS = ("user4", "user5", "user0")
SHARE = 0.3
# Clients that come again and again use it up in a minute, not in a moment.
QUOTA_LEAST = 20_000_000
# The misdeeds of agents; "" is an honest one.
KINDS = ("", "", "", "", "unasked", "flood", "garbage", "page", "refuses", "drops", "mute", "full")


@dataclass(frozen=True, slots=True)
class ExitPlan:
    """A device, its agent, and its owner.

    Attributes:
        number: of the device.
        node: the number of the daemon that it attaches to first.
        at: when it begins.
        kind: of `KINDS`.
        addresses: where it attaches from, one after the other.
        leaves: where its connections leave, if elsewhere; "" for the address that it attaches from.
        breaks: when its control connection breaks.
        silence: when it is not heard, from and for how long; None for never.
        rests: when it says that it is paused, from and for how long; None for never.
        limits: of the account.
        dials: seconds until it has connected to a target.
        twin: whether a second agent attaches with the same token.
        acts: of its owner in the account, each with its time.
    """

    number: int
    node: int
    at: float
    kind: str
    addresses: tuple[str, ...]
    leaves: str
    breaks: tuple[float, ...]
    silence: tuple[float, float] | None
    rests: tuple[float, float] | None
    limits: ExitDeviceLimits
    dials: float
    twin: bool
    acts: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class WishPlan:
    """The wishes of a client that leaves through exits.

    Attributes:
        wants: the wishes.
        target: an address.
        port: of it.
    """

    wants: Wants
    target: int
    port: int


@dataclass(frozen=True, slots=True)
class Links:
    """The exits of a run; none without devices.

    Attributes:
        devices: attach as exits.
        wishes: of clients, each with one of them.
        has_canaries: whether the daemon looks at what exits carry.
    """

    devices: tuple[ExitPlan, ...] = ()
    wishes: tuple[WishPlan, ...] = ()
    has_canaries: bool = False


NO_LINKS = Links()


def links_of(draw: Random, seconds: float, *, always: bool) -> Links:
    """Return the exits of a run; most runs have none, unless they `always` do."""
    if draw.random() > SHARE and not always:
        return NO_LINKS
    devices = tuple(
        _device(draw, number, seconds) for number in range(1 + int(draw.random() * DEVICES_MOST))
    )
    wishes = tuple(_wish(draw) for _ in range(5))
    return Links(devices, wishes, has_canaries=draw.random() < 0.4)


def by_exits(
    draw: Random, sessions: list[SessionPlan], clients: list[ClientPlan]
) -> tuple[list[SessionPlan], list[ClientPlan]]:
    """Return sessions that last, and clients that mostly leave through exits, again and again."""
    lasting = [replace(each, quota=max(each.quota, QUOTA_LEAST)) for each in sessions]
    leaving = [
        replace(
            each,
            exit=int(draw.random() * 5),
            size=min(each.size, int(10e3 * 100 ** draw.random())),
            rests=min(each.rests, 0.5),
        )
        if draw.random() < 0.85
        else each
        for each in clients
    ]
    return lasting, leaving


def lent_to(
    draw: Random, clients: list[ClientPlan], seconds: float
) -> tuple[list[ClientPlan], list[Fault]]:
    """Return clients that stay connected for long, and kills of the nodes that borrow exits."""
    staying = [
        replace(
            each, node=int(draw.random() * 12), size=5_000_000, pause=0.2, rate=FAST, gives_up=None
        )
        for each in clients
    ]
    kills = [
        Fault(
            "kill", round(4.0 + seconds * draw.random(), 3), draw.random(), int(12 * draw.random())
        )
        for _ in range(1 + int(2 * draw.random()))
    ]
    return staying, sorted(kills, key=lambda each: each.at)


def _device(draw: Random, number: int, seconds: float) -> ExitPlan:
    network = ("198.51.100", "203.0.113", "192.0.2")[int(draw.random() * 3)]
    line = 1 + int(draw.random() * 4)  # two devices may have the same one
    addresses = tuple(f"{network}.{100 + line + 10 * each}" for each in range(3))
    ports = ((), (80, 443), (443,))[int(draw.random() * 3)]
    limits = ExitDeviceLimits(
        connections=1 + int(16 * draw.random() ** 2),
        bytes_per_second=int(100e3 * 100 ** draw.random()) if draw.random() < 0.3 else 0,
        bytes_per_day=int(500e3 * 200 ** draw.random()) if draw.random() < 0.2 else 10**12,
        ports=ports or (80, 443, 8080, 8443),
        min_price_per_gb=int(draw.random() * 3_000_000) if draw.random() < 0.3 else 0,
    )
    acts = []
    for _ in range(int(draw.random() * 3) if draw.random() < 0.4 else 0):
        what = ("pause", "resume", "limits", "revoke", "consent")[int(draw.random() * 5)]
        acts.append((round(1.0 + seconds * draw.random(), 3), what))
    return ExitPlan(
        number=number,
        node=int(draw.random() * 12),
        at=round(0.2 + 2.0 * draw.random() ** 2, 3),
        kind=KINDS[int(draw.random() * len(KINDS))],
        addresses=addresses if draw.random() < 0.4 else addresses[:1],
        leaves=f"{network}.{200 + line}" if draw.random() < 0.15 else "",
        breaks=tuple(round(seconds * draw.random(), 3) for _ in range(int(3 * draw.random()))),
        silence=(seconds * draw.random(), 10 * draw.random()) if draw.random() < 0.3 else None,
        rests=(seconds * draw.random(), 3 * draw.random()) if draw.random() < 0.3 else None,
        limits=limits,
        dials=0.005 * 100 ** draw.random() if draw.random() < 0.8 else 6.0 * draw.random(),
        twin=draw.random() < 0.1,
        acts=tuple(sorted(acts)),
    )


def _wish(draw: Random) -> WishPlan:
    kind = draw.random()
    label = f"label{int(draw.random() * 2)}" if kind < 0.5 else ""
    countries = ("de", "fr", "us")[int(draw.random() * 3)]
    wants = Wants(
        countries=(countries,) if draw.random() < 0.3 else (),
        session=label,
        lifetime_seconds=60 if draw.random() < 0.5 else 3600,
        strict=bool(label) and draw.random() < 0.4,
        rotate=not label and draw.random() < 0.4,
    )
    return WishPlan(wants, int(draw.random() * len(TARGETS)), 443 if draw.random() < 0.6 else 80)


def device_id_of(number: int) -> str:
    """Return the device of an exit."""
    return f"link{number}"


def owner_of(number: int) -> str:
    """Return the account of an exit's owner."""
    return OWNERS[number % len(OWNERS)]


def token_of(number: int) -> str:
    """Return the token of a device."""
    return f"token of link{number}"


def hashed(token: str) -> str:
    """Return the hash of a token, as the store has it."""
    return hashlib.sha256(token.encode()).hexdigest()
