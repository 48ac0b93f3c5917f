"""An epoll set that takes no more sockets, in the place of a poller's."""

import errno
import select


class Full:
    """Refuses every socket that is new; sockets in another set are reported as before.

    Args:
        epoll: that other set, if there is one.
    """

    closed = False

    def __init__(self, epoll: select.epoll | None = None) -> None:
        self._epoll = epoll

    def register(self, _fd: int, _events: int) -> None:
        raise OSError(errno.ENOSPC, "max_user_watches")

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)
