"""One port for every protocol: the first byte tells which one a client speaks."""

from string import ascii_letters

from proxyd.wire.events import Address, Event, Failure, Refusal, ServerProtocol
from proxyd.wire.http import Http
from proxyd.wire.socks5 import Socks5

_METHOD_STARTS = frozenset(ascii_letters.encode())


class Detecting:
    """HTTP if the first byte is a letter, else SOCKS5, which knows what to say to all others.

    A `ServerProtocol`.

    Args:
        password_required: whether clients show credentials; see `Socks5` and `Http`.
    """

    __slots__ = ("_is_undecided", "_password_required", "_protocol")

    def __init__(self, *, password_required: bool = True) -> None:
        self._password_required = password_required
        self._is_undecided = True
        self._protocol: ServerProtocol = Socks5(password_required=password_required)

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._is_undecided and data:
            self._is_undecided = False
            if data[0] in _METHOD_STARTS:
                self._protocol = Http(password_required=self._password_required)
        self._protocol.receive_data(data)

    def next_event(self) -> Event | None:
        """Return what the client said, or None until more bytes or a decision arrive."""
        return self._protocol.next_event()

    def data_to_send(self) -> bytes:
        """Return what is to be sent to the client, once."""
        return self._protocol.data_to_send()

    def accept_credentials(self) -> None:
        """Let the client go on to its request."""
        self._protocol.accept_credentials()

    def refuse_credentials(self, refusal: Refusal) -> None:
        """Tell the client why not; close it after what is to be sent."""
        self._protocol.refuse_credentials(refusal)

    def succeed(self, host: Address, port: int) -> None:
        """Tell the client that the target is connected, from this local address."""
        self._protocol.succeed(host, port)

    def fail(self, failure: Failure) -> None:
        """Tell the client why there is no connection; close it after what is to be sent."""
        self._protocol.fail(failure)

    def trailing_data(self) -> bytes:
        """Return the first bytes to relay to the target, once."""
        return self._protocol.trailing_data()

    def upload_limit(self) -> int | None:
        """Return how many bytes may follow the `trailing_data` to this target; None: any number."""
        return self._protocol.upload_limit()
