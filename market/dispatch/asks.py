"""Values of the dispatch: requests of devices, their answers, and the operator's terms."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from market.attempts.attempts import Action
from market.files.artifacts import WorkFiles
from market.jobs.hindrances import Compared
from market.jobs.matching import Offer
from market.jobs.overdue import Leases
from market.trust.reputation import Reputation
from storage.dispatch.claims import GivenRow, OfferedRow

SayHeld = Callable[[], Awaitable[None]]


class Takers(NamedTuple):
    """Number of the latest requesting devices, and of the copies that they can take."""

    asked: int
    owners: int


class DispatchTerms(Struct, frozen=True):
    """Terms for the answers to requests for work.

    Attributes:
        credit: the worth of a credit, in micro-USD.
        lease_seconds: silence of a device about an attempt after which the attempt is taken back.
        prepare_seconds: for how long a device prepares an attempt before it gives up by itself.
        wait_seconds: the longest time that a request is held.
        sign_seconds: time between two signs of life to a device whose request is held; proxies on
            the way close a connection that is silent for a minute.
        held_max: number of requests that are held at most; one owner's devices have half of it.
    """

    credit: int = 10_000
    lease_seconds: int = 600
    prepare_seconds: int = Leases().device_prepare_seconds
    wait_seconds: float = 300.0
    sign_seconds: float = 50.0
    held_max: int = 10_000


class DispatchPace(Struct, frozen=True):
    """The times and sizes of the dispatch that no operator decides.

    Attributes:
        full_seconds: between two tries for a device that offers to do more jobs than it may
            have: the end of a job is not reported here. All devices of a full owner wait for
            the same time.
        away_seconds: silence of an agent after which it is away. Its next request comes
            immediately, or after a minute if the marketplace was away for long.
        broken_off_seconds: the same for an agent that has broken its request off.
        kept_from_devices: number of devices with kept results of comparisons. To compare
            a job with 200 devices takes a millisecond, and a client that lists jobs repeatedly
            would delay all others.
        kept_seconds: age of a result until which it is used.
        kept_max: results that are kept at most.
    """

    full_seconds: float = 5.0
    away_seconds: float = 120.0
    broken_off_seconds: float = 10.0
    kept_from_devices: int = 20
    kept_seconds: float = 2.0
    kept_max: int = 4_096


USUAL_PACE = DispatchPace()


class Agent(Struct, frozen=True):
    """The program that sends a device's requests: its folder's name, and its start (UTC seconds).

    Two programs may have the token of one device, against the rules.
    """

    name: str = ""
    since: int = 0


class Ask(Struct, frozen=True):
    """The request of a device: its offer, its attempts, and the time that it waits.

    `seen` is the number of the last answer that it got, 0 for none. `network` is the network of its
    address (`market.base.networks.site`).
    """

    offer: Offer
    attempts: frozenset[tuple[str, int]]
    wait_seconds: float
    seen: int
    agent: Agent = Agent()
    network: str = ""


class GivenJob(Struct, frozen=True):
    """A job of a device: `payload` is JSON with the secrets, `files` are to be fetched."""

    row: GivenRow
    payload: bytes
    files: WorkFiles = WorkFiles()


class OfferedJob(Struct, frozen=True):
    """A job that a device could get, and its price as in an `Offer`."""

    row: OfferedRow
    price: int


class Offers(Struct, frozen=True):
    """The jobs that a device could get, the best first, with the device's reputation."""

    jobs: list[OfferedJob]
    reputation: Reputation


class Told(Struct, frozen=True):
    """The answer to a device: its new jobs, attempts to stop, and the number of the answer.

    `is_replaced`: another agent with the same token was started later, and is given the jobs.
    """

    jobs: Sequence[GivenJob]
    actions: Sequence[Action]
    seen: int
    is_replaced: bool = False


class Standing(Struct, frozen=True):
    """The state of a device that wants work.

    Attributes:
        is_asking: whether its agent asks for work here, or has within two minutes.
        offer: its last offer; if `is_reported`, an offer made of its last report.
        is_reported: whether it has offered nothing here.
        compared: the result of comparing the waiting jobs with its offer, as if it were free.
    """

    is_asking: bool
    offer: Offer
    is_reported: bool
    compared: Compared


def replaced(ask: Ask) -> Told:
    """Return the answer for an agent that another one has replaced."""
    return Told((), (), ask.seen, is_replaced=True)
