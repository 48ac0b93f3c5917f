"""One device that asks for work: its states, its parts, and its held request.

A device has two states. `Knowledge` is about the attempts that it holds, which the store has and
memory repeats; `Presence` is about its agent. `TRANSITIONS` has the arrows of both:

    UNKNOWN --a look begins--> LOOKING --it ends--> KNOWN --something happens--> UNKNOWN
    LOOKING --something happens, or the look fails--> UNKNOWN
    KNOWN --the device names other attempts--> LOOKING

    RESTING, BROKEN_OFF --a request comes--> ASKING --it is answered--> RESTING
    ASKING --the agent goes away--> BROKEN_OFF

A later request takes the place of an earlier one, so two looks may be under way. The later one
alone makes the attempts KNOWN.
"""

import asyncio
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar, final

from market.attempts.attempts import Action
from market.dispatch.asks import Agent, Ask, DispatchPace, SayHeld
from storage.devices.devices import DeviceRow
from storage.dispatch.claims import GivenRow

if TYPE_CHECKING:
    from market.jobs.matching import Offer
    from proxyctl.protocol.jobspec import Capacity

Key = tuple[str, int]  # a job, and the number of an attempt at it

# Each device has some, and an empty set of its own takes 216 bytes.
NO_ATTEMPTS: Final[frozenset[Key]] = frozenset()
NO_ACTIONS: Final[frozenset[Action]] = frozenset()


class Knowledge(IntEnum):
    """The knowledge of the attempts of a device.

    UNKNOWN: they may have changed. LOOKING: the store is read. KNOWN: they are as in the store.
    """

    UNKNOWN = 0
    LOOKING = 1
    KNOWN = 2


class Presence(IntEnum):
    """The presence of the agent of a device.

    RESTING: it has its last answer, or has not asked yet. ASKING: its request is held.
    BROKEN_OFF: it did not wait for its last answer.
    """

    RESTING = 3
    ASKING = 4
    BROKEN_OFF = 5


# No two states have the same number, so one table has the arrows of both kinds.
TRANSITIONS: Final[dict[IntEnum, tuple[IntEnum, ...]]] = {
    Knowledge.UNKNOWN: (Knowledge.LOOKING,),
    Knowledge.LOOKING: (Knowledge.KNOWN, Knowledge.UNKNOWN),
    Knowledge.KNOWN: (Knowledge.LOOKING, Knowledge.UNKNOWN),
    Presence.RESTING: (Presence.ASKING,),
    Presence.ASKING: (Presence.RESTING, Presence.BROKEN_OFF),
    Presence.BROKEN_OFF: (Presence.ASKING,),
}

# Names of this module: the lookup of an enumeration's member takes six times longer (3.11).
_UNKNOWN: Final = Knowledge.UNKNOWN
_LOOKING: Final = Knowledge.LOOKING
_KNOWN: Final = Knowledge.KNOWN
_RESTING: Final = Presence.RESTING
_ASKING: Final = Presence.ASKING
_BROKEN_OFF: Final = Presence.BROKEN_OFF

_State = TypeVar("_State", Knowledge, Presence)


def moved(before: _State, after: _State) -> _State:
    """Return the next state. An arrow must lead to it."""
    assert after in TRANSITIONS[before]  # noqa: S101 - a wrong transition is a defect
    return after


@final
class Holding:
    """The attempts of a device at jobs with a payload, and the jobs that it is being given.

    `attempts` has the result of the last look, and the attempts that were given since. `claims` is
    the number of jobs that are being given.
    """

    __slots__ = ("_looks", "_settled", "_state", "attempts", "claims")

    def __init__(self) -> None:
        self.attempts = NO_ATTEMPTS
        self.claims = 0
        self._looks = 0
        self._settled: asyncio.Future[None] | None = None
        self._state = _UNKNOWN

    @property
    def is_known(self) -> bool:
        """Whether the attempts are as in the store."""
        return self._state is _KNOWN

    def look(self) -> int:
        """Begin to look the attempts up; return the number of the look."""
        self._looks += 1
        if self._state is not _LOOKING:
            self._state = moved(self._state, _LOOKING)
        return self._looks

    def found(self, look: int, attempts: frozenset[Key]) -> bool:
        """Store the attempts that a look has found. Return False if a later look has begun.

        They stay UNKNOWN when something has happened meanwhile.
        """
        if look != self._looks:
            return False
        self.attempts = attempts or NO_ATTEMPTS
        if self._state is _LOOKING:
            self._state = moved(self._state, _KNOWN)
        return True

    def failed(self, look: int) -> None:
        """End a look that has found nothing."""
        if look == self._looks:
            self.doubt()

    def doubt(self) -> None:
        """Mark the attempts for a lookup, because they may have changed."""
        if self._state is not _UNKNOWN:
            self._state = moved(self._state, _UNKNOWN)

    def add(self, row: GivenRow) -> None:
        """Add an attempt that the device was given."""
        self.attempts |= {(row.job_id, row.attempt)}

    def begin_claim(self) -> None:
        """Note that a job is being given to the device: later requests wait."""
        self.claims += 1

    def end_claim(self) -> None:
        """Let later requests of the device continue, unless another job is being given."""
        self.claims -= 1
        if not self.claims and self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    async def settle(self) -> None:
        """Wait until no job is being given."""
        while self.claims:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)


@final
class Answers:
    """The contents of the answers to a device: repeated until the device has seen them.

    `actions` still stand, the last of them in the answer with the number `acted_at`. `given` are
    the attempts that it was given and does not name, with the number of the answer: one that it has
    seen and does not take is not given again, but taken back. `agents` are the agents that were
    given the attempts that it holds.
    """

    __slots__ = ("acted_at", "actions", "agents", "given")

    def __init__(self) -> None:
        self.actions = NO_ACTIONS
        self.acted_at = 0
        self.given: dict[Key, int] = {}
        self.agents: dict[Key, str] = {}

    def add(self, ask: Ask, keys: Collection[Key], actions: Sequence[Action]) -> int:
        """Note an answer, and return its number, which neither side has had."""
        number = max(self.acted_at, ask.seen, *self.given.values()) + 1
        self.given.update(dict.fromkeys(keys, number))
        self.agents.update(dict.fromkeys(keys, ask.agent.name))
        if actions:
            self.actions, self.acted_at = self.actions.union(actions), number
        return number

    def keep(self, attempts: Collection[Key], named: Collection[Key]) -> None:
        """Forget the attempts that a device does not hold any more, or that it names."""
        self.given = {
            key: number
            for key, number in self.given.items()
            if key in attempts and key not in named
        }
        self.agents = {key: name for key, name in self.agents.items() if key in attempts}

    def new(self, actions: Sequence[Action], seen: int) -> Sequence[Action]:
        """Return the actions that a device has not seen; it is at work on the others."""
        if seen < self.acted_at:
            self.actions = NO_ACTIONS
            return actions
        self.actions = self.actions.intersection(actions) or NO_ACTIONS
        return [each for each in actions if each not in self.actions]

    def is_unseen(self, row: GivenRow, ask: Ask) -> bool:
        """Return whether a device does not know of an attempt, and should get it again."""
        key = row.job_id, row.attempt
        # Another agent may be at work on an attempt that it has not named yet.
        is_own = self.agents.get(key, "") in ("", ask.agent.name)
        return is_own and self.given.get(key, ask.seen + 1) > ask.seen


@final
class Attendance:
    """The agent of a device: `agent` gets jobs now, and asked last at `asked_at` (loop time).

    `request` is the one that is held.
    """

    __slots__ = ("_state", "agent", "asked_at", "request")

    def __init__(self) -> None:
        self.agent = Agent()
        self.asked_at = 0.0
        self.request: Request | None = None
        self._state = _RESTING

    def is_asking(self, now: float, pace: DispatchPace) -> bool:
        """Return whether the agent requests work: a request is held, or one ended lately."""
        has_broken_off = self._state is _BROKEN_OFF
        seconds = pace.broken_off_seconds if has_broken_off else pace.away_seconds
        return self.request is not None or now - self.asked_at <= seconds

    def is_for(self, agent: Agent, now: float, pace: DispatchPace) -> bool:
        """Note the agent that asks. Return whether no later agent works in its place."""
        is_away = self.request is None and now - self.asked_at > pace.away_seconds
        if self.has_other(agent) and agent.since < self.agent.since and not is_away:
            return False
        if agent.name:
            self.agent, self.asked_at = agent, now
        return True

    def has_other(self, agent: Agent) -> bool:
        """Return whether another agent gets the jobs; False where an agent has no name."""
        return bool(agent.name and self.agent.name) and agent.name != self.agent.name

    def begin(self, request: "Request") -> None:
        """Hold a request, in the place of an earlier one."""
        self.request = request
        if self._state is not _ASKING:
            self._state = moved(self._state, _ASKING)

    def end(self, now: float, *, is_broken_off: bool) -> None:
        """Stop holding the request."""
        self.request, self.asked_at = None, now
        after = _BROKEN_OFF if is_broken_off else _RESTING
        self._state = moved(self._state, after)


@final
class AskingDevice:
    """A device that asks for work.

    `offer`, `owner` and `network` are those of the request that came last. `whole` is everything
    that it lends: the capacity of its last request in which it held nothing.
    `reputation` is the last value that was looked up, in millionths; `is_proven`: it has completed
    enough jobs.
    """

    __slots__ = (
        "answers",
        "holding",
        "is_proven",
        "network",
        "offer",
        "owner",
        "presence",
        "reputation",
        "whole",
    )

    def __init__(self) -> None:
        self.holding = Holding()
        self.answers = Answers()
        self.presence = Attendance()
        self.offer: Offer | None = None
        self.whole: Capacity | None = None
        self.owner = self.network = ""
        self.reputation = 0
        self.is_proven = False

    def ask(self, request: "Request", ask: Ask) -> None:
        """Store a request's report about the device, and hold the request."""
        self.presence.begin(request)
        self.offer = ask.offer
        if not ask.attempts and ask.offer.capacity.slots:
            self.whole = ask.offer.capacity
        self.owner, self.network = request.owner, request.network

    def wake(self) -> None:
        """Let its request continue, unless jobs are being given to it."""
        request = self.presence.request
        if request is not None and not request.claiming:
            request.wake()


class Request:
    """A held request; a `Waiter` while no job was found for it."""

    __slots__ = (
        "claiming",
        "device",
        "device_id",
        "error",
        "future",
        "jobs",
        "network",
        "offer",
        "owner",
        "say_held",
    )

    def __init__(
        self, row: DeviceRow, device: AskingDevice, ask: Ask, say_held: SayHeld | None
    ) -> None:
        self.say_held = say_held
        self.device_id = row.id
        self.owner = row.user_id
        self.network = ask.network
        self.device = device
        self.offer = ask.offer
        self.future: asyncio.Future[bool] | None = None
        self.claiming = 0
        self.jobs: list[GivenRow] = []
        self.error: Exception | None = None

    @property
    def reputation(self) -> int:
        """The reputation of the device, in millionths."""
        return self.device.reputation

    @property
    def is_wanted(self) -> bool:
        """Whether the device waits for it: no later request has taken its place."""
        return self.device.presence.request is self

    def wake(self) -> None:
        """Let the request continue."""
        if self.future is not None and not self.future.done():
            self.future.set_result(True)

    async def is_woken(self, seconds: float) -> bool:
        """Wait for `wake`. Return False when the time is over before."""
        future = self.future
        assert future is not None  # noqa: S101 - made before anything waits for it
        timer = asyncio.get_running_loop().call_later(seconds, _pass, future)
        try:
            return await future
        finally:
            timer.cancel()


def _pass(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
