"""One port for every protocol: the first byte of a client selects it."""

from string import ascii_letters
from typing import Final

from proxyd.wire.events import ServerProtocol
from proxyd.wire.http import Http
from proxyd.wire.socks5 import Socks5

_METHOD_STARTS: Final = frozenset(ascii_letters.encode())


def detect(first: int, *, password_required: bool = True) -> ServerProtocol:
    """Return the server's side of the client's protocol; the caller must then pass it the bytes.

    HTTP if the first byte is a letter, else SOCKS5, which has an answer for all others.

    Args:
        first: the first byte that the client has sent.
        password_required: whether clients show credentials; see `Socks5` and `Http`.
    """
    if first in _METHOD_STARTS:
        return Http(password_required=password_required)
    return Socks5(password_required=password_required)
