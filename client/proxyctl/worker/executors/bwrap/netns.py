"""Sockets inside a job's network namespace, made from outside and without any privilege.

A socket stays in the namespace that it was made in. So a child of this process joins the job's
namespaces, makes a socket there, and hands it back: the agent then serves a port that only
the job sees, or talks to one on which only the job listens. Nothing of it is inside the job.

To fork an agent takes milliseconds, so the child that connects to ports of a job stays, and makes
one socket after the other in a fraction of one, until the job or the agent ends.
"""

from __future__ import annotations

import array
import errno
import fcntl
import gc
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

from proxyctl.worker.base.libc import CLONE_NEWNET, CLONE_NEWUSER, LIBC, checked

if TYPE_CHECKING:
    from collections.abc import Callable

_NS_GET_USERNS: Final = 0xB701  # ioctl_ns(2)
BACKLOG: Final = 64  # connections of one job that wait to be taken
SECONDS: Final = 10.0  # for all of it, on a busy machine
STEP_SECONDS: Final = 0.01


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
    """The network namespaces of jobs with connections from outside, open until the jobs end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._makers: dict[str, _Maker] = {}

    def connect(self, attempt_id: str, port: int, find: Callable[[], int | None]) -> socket.socket:
        """Return a socket that does not block, whose connect to a port of a job may be under way.

        Args:
            attempt_id: of the job.
            port: on 127.0.0.1, seen from within.
            find: returns a process of the job, None if no process runs.

        Raises:
            OSError: no program listens there (ConnectionRefusedError), or the job has ended, or its
                namespace cannot be joined.
        """
        sock = self._socket(attempt_id, find)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = sock.connect_ex(("127.0.0.1", port))
        if number not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(number, os.strerror(number))
        return sock

    def forget(self, attempt_id: str) -> None:
        """Close a job's namespace, if it is open."""
        with self._lock:
            maker = self._makers.pop(attempt_id, None)
        if maker is not None:
            maker.close()

    def close(self) -> None:
        """Close all of them."""
        for attempt_id in list(self._makers):
            self.forget(attempt_id)

    def _socket(self, attempt_id: str, find: Callable[[], int | None]) -> socket.socket:
        with self._lock:
            maker = self._makers.get(attempt_id)
        if maker is not None:
            try:
                return maker.socket()
            except TimeoutError:
                self.forget(attempt_id)
                raise
            except _GoneError:
                self.forget(attempt_id)
        space = _space_of(find)
        try:
            maker = _Maker(space)
        finally:
            os.close(space)
        try:
            sock = maker.socket()
        except BaseException:
            maker.close()
            raise
        with self._lock:
            other = self._makers.setdefault(attempt_id, maker)
        if other is not maker:  # another thread was quicker
            maker.close()
        elif find() is None:  # the job has ended meanwhile, and `forget` is not called again
            self.forget(attempt_id)
        return sock


class _GoneError(OSError):
    """The maker of sockets has ended, or was closed."""


class _Maker:
    """A child of this process that makes sockets in a network namespace, one after the other.

    It ends with this object, and with this process, however that ends.
    """

    def __init__(self, space: int) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child = _forked(lambda: _make_sockets(space, theirs))
            except BaseException:
                self._channel.close()
                raise

    def socket(self) -> socket.socket:
        """Return a socket in that namespace.

        Raises:
            OSError: the namespace cannot be joined; `_GoneError` if the child has ended.
        """
        with self._lock:
            try:
                self._channel.send(b"1")
                return _receive(self._channel)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise _GoneError(errno.ESRCH, "what made sockets there has ended") from error
            except OSError as error:
                if self._channel.fileno() < 0:
                    raise _GoneError(errno.ESRCH, "this job has ended") from error
                raise

    def close(self) -> None:
        """End it; closing twice is harmless."""
        with self._lock:
            if self._channel.fileno() >= 0:
                self._channel.close()
                _end(self._child)


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
        child = _forked(lambda: _make_one(space, make, theirs))
        try:
            theirs.close()
            return _receive(ours)
        finally:
            _end(child)


def _forked(work: Callable[[], None]) -> int:
    """Return a child of this process that does some work, and ends."""
    with warnings.catch_warnings():
        # The child calls a few system calls, takes no lock of another thread, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def _end(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # it has ended, or is about to, or it hangs
    os.waitpid(child, 0)


def _make_one(space: int, make: Callable[[], socket.socket], channel: socket.socket) -> None:
    """Make a socket in a namespace, and pass it back, or the reason of the failure."""
    try:
        _join(space)
        sock = make()
    except OSError as error:
        channel.send(str(error.errno or errno.EIO).encode())
    else:
        _hand_back(sock, channel)


def _make_sockets(space: int, channel: socket.socket) -> None:
    """Make a socket in a namespace for each request, until the other side ends."""
    gc.disable()  # a late collection would close reused descriptors
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the agent handles them
        signal.signal(each, signal.SIG_IGN)
    failure = b""
    try:
        _join(space)
    except OSError as error:
        failure = str(error.errno or errno.EIO).encode()
    # The agent's connections would stay open through this process, and its own end unseen.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - nothing else is needed of them
        if int(name) != channel.fileno():
            with suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))
    while channel.recv(1):
        if failure:
            channel.send(failure)
        else:
            with socket.socket() as sock:
                _hand_back(sock, channel)


def _hand_back(sock: socket.socket, channel: socket.socket) -> None:
    descriptors = array.array("i", [sock.fileno()])
    channel.sendmsg([b"0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def _join(space: int) -> None:
    """Join a network namespace; that of users which owns it before, where that is not ours."""
    if os.geteuid() != 0:
        owner = fcntl.ioctl(space, _NS_GET_USERNS)
        if os.fstat(owner).st_ino != Path("/proc/self/ns/user").stat().st_ino:
            _set_namespace(owner, CLONE_NEWUSER)
    _set_namespace(space, CLONE_NEWNET)


def _set_namespace(descriptor: int, kind: int) -> None:
    checked(LIBC.setns(descriptor, kind))


def _receive(channel: socket.socket) -> socket.socket:
    poller = select.poll()  # `select` refuses descriptors from 1,024 on
    poller.register(channel, select.POLLIN)
    if not poller.poll(SECONDS * 1000):
        raise TimeoutError("the namespace could not be joined in time")
    data, ancillary, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return socket.socket(fileno=array.array("i", content[:4])[0])
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, "what makes sockets there has ended")
    number = int(data) or errno.EIO
    raise OSError(number, os.strerror(number))
