"""Sessions that no store knows, and sinks that hold their bytes."""

from market.leases import Grant
from market.states import SessionStatus
from proxyd.metering.session import LiveSession


class Stalled:
    """A sink that holds bytes until a test lets them go, and counts how often it is asked."""

    def __init__(self) -> None:
        self.waiting = 10
        self.asked = 0

    def unsent(self) -> int:
        self.asked += 1
        return self.waiting


def session_of(granted_bytes: int) -> LiveSession:
    """Return a session that nobody else knows."""
    grant = Grant(
        session_id="session",
        username="somebody",
        password_hash="",
        status=SessionStatus.ACTIVE,
        expires_at=2**40,
        lease_id="lease",
        granted_bytes=granted_bytes,
        entries=(),
    )
    return LiveSession(grant, lambda _: None)


def use(session: LiveSession, size: int, sink: Stalled | None = None) -> None:
    """Take bytes and deliver them."""
    session.take(size, None)
    session.deliver(size, sink)
