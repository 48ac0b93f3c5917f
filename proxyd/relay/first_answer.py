"""Checks whether the first answer to a TLS client is TLS: any other answer was made up by the exit.

A client that begins with a handshake record (RFC 8446, section 5.1) gets a record of that kind, or
an alert. Other protocols on the port are passed on unseen.
"""

from collections.abc import Callable
from typing import Final, final

HANDSHAKE: Final = 0x16
ALERT: Final = 0x15
VERSION_MAJOR: Final = 3  # of each version since SSL 3


@final
class FirstAnswer:
    """Compares the first bytes of both ways.

    Args:
        wrong: called once if the answer is no TLS.
        right: called once otherwise, with whether the client and the answer are TLS.
    """

    __slots__ = ("_is_tls", "_right", "_wrong")

    def __init__(
        self,
        wrong: Callable[[], None] | None,
        right: Callable[[bool], None] | None = None,
    ) -> None:
        self._is_tls = False
        self._right = right
        self._wrong = wrong

    def asked(self, data: bytes) -> bool:
        """Take the first bytes of the client, which are always right."""
        self._is_tls = data[0] == HANDSHAKE
        return True

    def answered(self, data: bytes) -> bool:
        """Take the first bytes of the target; False if the caller must drop them."""
        if not self._is_tls or (
            data[0] in (HANDSHAKE, ALERT) and (len(data) == 1 or data[1] == VERSION_MAJOR)
        ):
            if self._right is not None:
                self._right(self._is_tls)
            return True
        if self._wrong is not None:
            self._wrong()
        return False
