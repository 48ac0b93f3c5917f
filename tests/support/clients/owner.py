"""The owner of a proxy protocol without sockets: it decides as the gateway does."""

from ipaddress import IPv4Address

from proxyd.wire.detect import detect
from proxyd.wire.events import (
    Associate,
    Authenticate,
    Connect,
    Event,
    Failure,
    Identify,
    Refusal,
    ServerProtocol,
    Violation,
)

BOUND = IPv4Address("192.0.2.7"), 4242


class Owner:
    """Reads a client's bytes, and records the answers.

    `answers` pairs each answer with the number of bytes received by then. `is_over` says that the
    protocol has done its part: the relay is next, or the end.

    Args:
        protocol: the client's protocol; None when its first byte says it.
        accept: whether credentials are accepted.
        reach: whether targets are reached.
        password_required: passed to the protocol when the first byte chooses it.
    """

    def __init__(
        self,
        protocol: ServerProtocol | None = None,
        *,
        accept: bool = True,
        reach: bool = True,
        password_required: bool = True,
    ) -> None:
        self._chosen = protocol
        self._password_required = password_required
        self.accept = accept
        self.reach = reach
        self.events: list[Event] = []
        self.answers: list[tuple[int, bytes]] = []
        self.heard = 0
        self.is_relaying = False
        self.is_over = False

    @property
    def protocol(self) -> ServerProtocol:
        assert self._chosen is not None, "nothing has been heard"
        return self._chosen

    @property
    def sent(self) -> bytes:
        return b"".join(answer for _, answer in self.answers)

    def hear(self, data: bytes) -> None:
        """Take a segment, unless it is empty or the conversation is over."""
        if not data or (self.is_over and not self.is_relaying):
            return
        self.heard += len(data)
        if self._chosen is None:
            self._chosen = detect(data[0], password_required=self._password_required)
        self.protocol.receive_data(data)
        while (event := self.protocol.next_event()) is not None:
            self.collect()
            self.events.append(event)
            self.decide(event)
            self.collect()
        self.collect()

    def collect(self) -> None:
        answer = self.protocol.data_to_send()
        if answer:
            self.answers.append((self.heard, answer))

    def decide(self, event: Event) -> None:
        match event:
            case Authenticate() | Identify() if self.accept:
                self.protocol.accept_credentials()
            case Authenticate() | Identify():
                self.protocol.refuse_credentials(Refusal.EXHAUSTED)
                self.is_over = True
            case Connect() | Associate() if self.reach:
                self.protocol.succeed(*BOUND)
                self.is_over = self.is_relaying = True
            case Connect() | Associate():
                self.protocol.fail(Failure.REFUSED)
                self.is_over = True
            case Violation():
                self.is_over = True
