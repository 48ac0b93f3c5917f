"""Who is attached, and who is chosen. Pure: the clock is handed in."""

from collections.abc import Sequence
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from proxyctl.protocol.frames import Outcome
from proxyd.wire.wants import Wants


class Place(NamedTuple):
    """Where an exit is."""

    country: str = ""
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""


class Missing(Enum):
    """Why no exit is chosen."""

    NO_EXIT = 1
    EXIT_LOST = 2


class Entry(Protocol):
    """An exit, as it is chosen."""

    @property
    def device_id(self) -> str:
        """Which device it is."""

    @property
    def owner_id(self) -> str:
        """Whose."""

    @property
    def place(self) -> Place:
        """Where it is."""

    @property
    def has_place(self) -> bool:
        """Whether it takes one more connection now."""

    @property
    def min_price_per_gb(self) -> int:
        """Micro-USD."""


Kind = TypeVar("Kind", bound=Entry)


class Directory(Generic[Kind]):
    """The exits that are attached."""

    def __init__(self) -> None:
        self._exits: dict[str, Kind] = {}
        self._bindings: dict[tuple[str, str], str] = {}

    def add(self, exit_: Kind) -> None:
        """Let an exit be chosen from now on."""
        self._exits[exit_.device_id] = exit_

    def remove(self, exit_: Kind) -> None:
        """Let it be chosen no more."""
        if self._exits.get(exit_.device_id) is exit_:
            del self._exits[exit_.device_id]

    def pick(
        self,
        wants: Wants,
        *,
        session_id: str,
        owner_id: str,
        price_per_gb: int,
        target: str,  # noqa: ARG002
        tried: Sequence[str],
        now: float,  # noqa: ARG002
    ) -> Kind | Missing:
        """Choose an exit."""
        bound = self._bindings.get((session_id, wants.session)) if wants.session else None
        if bound in self._exits and bound not in tried:
            return self._exits[bound]
        if bound is not None and wants.strict:
            return Missing.EXIT_LOST
        for each in self._exits.values():
            if (
                each.device_id not in tried
                and each.owner_id != owner_id
                and each.has_place
                and each.min_price_per_gb <= price_per_gb
                and (not wants.countries or each.place.country in wants.countries)
            ):
                if wants.session:
                    self._bindings[session_id, wants.session] = each.device_id
                return each
        return Missing.NO_EXIT

    def note(self, exit_: Kind, outcome: Outcome | None, now: float) -> None:
        """Remember how a dial went; None: the exit was lost."""

    def take_move(self, wants: Wants, session_id: str) -> bool:  # noqa: ARG002
        """Say whether a label has another exit than before; yes is said once for each move."""
        return False

    def expire(self, now: float) -> None:
        """Forget what is over."""
