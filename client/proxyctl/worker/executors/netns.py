"""Sockets inside a job's network namespace, made from outside and without any privilege.

A socket stays in the namespace that it was made in. So a child of this process joins the job's
namespaces, makes a socket there, hands it back, and ends: the agent then serves a port that only
the job sees, or talks to one on which only the job listens. Nothing of it is inside the job.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_NS_GET_USERNS: Final = 0xB701  # ioctl_ns(2)
BACKLOG: Final = 64  # connections of one job that wait to be taken
SECONDS: Final = 10.0  # for all of it, on a busy machine
STEP_SECONDS: Final = 0.01
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def listen_inside(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on the loopback of a job's network namespace.

    Args:
        pid: of a process in it.
        port: on 127.0.0.1, seen from within.

    Raises:
        OSError: there is no such namespace any more, or the port is taken.
    """

    def make() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(sock, port)
        sock.listen(BACKLOG)
        return sock

    return _inside(pid, make)


def connect_inside(space: int, port: int) -> socket.socket:
    """Return a socket that does not block, whose connect to a port of a job is done or under way.

    Args:
        space: the job's network namespace (`open_space`).
        port: on 127.0.0.1, seen from within.

    Raises:
        OSError: nobody listens there (ConnectionRefusedError), or the namespace cannot be joined.
    """
    sock = _within(space, socket.socket)
    sock.setblocking(False)
    number = sock.connect_ex(("127.0.0.1", port))
    if number not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(number, os.strerror(number))
    return sock


def open_space(pid: int) -> int:
    """Return a descriptor of the network namespace of a process; the caller's to close.

    Raises:
        OSError: it has none of its own, or has ended.
    """
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    # If the process has ended its number may stand for one of the machine's own.
    if os.fstat(space).st_ino == Path("/proc/self/ns/net").stat().st_ino:
        os.close(space)
        raise OSError(errno.ESRCH, "this process is in no network namespace of its own")
    return space


class Spaces:
    """The network namespaces of jobs that somebody connects to, open until the jobs end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def connect(self, attempt_id: str, port: int, find: Callable[[], int | None]) -> socket.socket:
        """Return a socket to a port of a job; see `connect_inside`.

        Args:
            attempt_id: of the job.
            port: on 127.0.0.1, seen from within.
            find: returns a process of the job, None if there is none.

        Raises:
            OSError: nobody listens there, or there is no such job any more.
        """
        with self._lock:
            known = self._open.get(attempt_id)
            # A copy, which nobody closes while it is used.
            space = -1 if known is None else os.dup(known)
        if space < 0:
            space = _space_of(find)
            with self._lock:
                if attempt_id not in self._open:
                    self._open[attempt_id] = os.dup(space)
        try:
            return connect_inside(space, port)
        finally:
            os.close(space)

    def forget(self, attempt_id: str) -> None:
        """Let go of a job's namespace; harmless if there is none."""
        with self._lock:
            space = self._open.pop(attempt_id, None)
        if space is not None:
            os.close(space)

    def close(self) -> None:
        """Let go of all of them."""
        for attempt_id in list(self._open):
            self.forget(attempt_id)


def _space_of(find: Callable[[], int | None]) -> int:
    """Return the namespace of the process that is found before and after it was opened.

    So its number is still its own: a process that has ended leaves it to any other one.
    """
    pid = find()
    if pid is None:
        raise OSError(errno.ESRCH, "nothing of this job runs")
    space = open_space(pid)
    if find() != pid:
        os.close(space)
        raise OSError(errno.ESRCH, "nothing of this job runs")
    return space


def _bind(sock: socket.socket, port: int) -> None:
    """Bind once the loopback is up: the sandbox may still be at work on it."""
    deadline = time.monotonic() + SECONDS / 2
    while not _is_bound(sock, port, is_last=time.monotonic() > deadline):
        time.sleep(STEP_SECONDS)


def _is_bound(sock: socket.socket, port: int, *, is_last: bool) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or is_last:
            raise
        return False
    return True


def _inside(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    space = open_space(pid)
    try:
        return _within(space, make)
    finally:
        os.close(space)


def _within(space: int, make: Callable[[], socket.socket]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        child = _fork(space, make, theirs)
        try:
            theirs.close()
            return _receive(ours)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # it has ended, or it hangs
            os.waitpid(child, 0)


def _fork(space: int, make: Callable[[], socket.socket], channel: socket.socket) -> int:
    with warnings.catch_warnings():
        # The child calls a few system calls, takes no lock of another thread, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        try:
            _join(space)
            sock = make()
        except OSError as error:
            channel.send(str(error.errno or errno.EIO).encode())
        else:
            descriptors = array.array("i", [sock.fileno()])
            channel.sendmsg([b"0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            status = 0
    finally:
        os._exit(status)


def _join(space: int) -> None:
    """Join a network namespace; that of users which owns it before, where that is not ours."""
    if os.geteuid() != 0:
        owner = fcntl.ioctl(space, _NS_GET_USERNS)
        if os.fstat(owner).st_ino != Path("/proc/self/ns/user").stat().st_ino:
            _set_namespace(owner, _CLONE_NEWUSER)
    _set_namespace(space, _CLONE_NEWNET)


def _set_namespace(descriptor: int, kind: int) -> None:
    if _LIBC.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _receive(channel: socket.socket) -> socket.socket:
    readable, _, _ = select.select([channel], [], [], SECONDS)
    if not readable:
        raise TimeoutError("the namespace could not be joined in time")
    data, ancillary, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(4))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return socket.socket(fileno=array.array("i", content[:4])[0])
    number = int(data or b"0") or errno.EIO
    raise OSError(number, os.strerror(number))
