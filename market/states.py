"""The life cycles of what is sold: every state, and every way from one to another."""

from enum import StrEnum


class SessionStatus(StrEnum):
    """The states of a proxy session."""

    ACTIVE = "active"
    ENDED = "ended"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


SESSION_TRANSITIONS: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.ACTIVE: frozenset(
        {SessionStatus.ENDED, SessionStatus.EXHAUSTED, SessionStatus.EXPIRED}
    ),
    SessionStatus.ENDED: frozenset(),
    SessionStatus.EXHAUSTED: frozenset(),
    SessionStatus.EXPIRED: frozenset(),
}


def require_transition(before: SessionStatus, after: SessionStatus) -> None:
    """Check that a session may go from `before` to `after`.

    Raises:
        ValueError: no such transition exists; the caller has a mistake.
    """
    if after not in SESSION_TRANSITIONS[before]:
        raise ValueError(f"a session never goes from {before} to {after}")
