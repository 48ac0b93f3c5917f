"""Readiness of a job: its port accepts a connection, and answers a request if one is declared.

A stranger's program answers: it is read up to the first line, and for some seconds.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor as Pool

    from proxyctl.protocol.jobspec.payload import Ready

PROBE_SECONDS: Final = 5.0  # a page that takes longer would not be called ready by its readers
_LINE_MAX_BYTES: Final = 1024  # of a status; the longest phrase in use has thirty characters
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r]")
_REDIRECTION_LAST: Final = 399
_SUCCESS_FIRST: Final = 200


async def connected(
    connect: Callable[[int], socket.socket], port: int, pool: Pool, seconds: float
) -> socket.socket:
    """Return a socket that is connected to a port of a job; the caller's to close.

    Args:
        connect: makes it, as `Executor.connect` does; blocks, so it is called in `pool`.
        port: on which the job listens.
        pool: of threads.
        seconds: after which it is given up.

    Raises:
        OSError: it cannot be connected; TimeoutError after this time.
        TaskError: the executor cannot do that.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    attempt = loop.run_in_executor(pool, connect, port)
    try:
        await asyncio.wait({attempt}, timeout=seconds)
        if not attempt.done():
            raise TimeoutError("the sandbox cannot be joined in time")
        sock = attempt.result()
    except BaseException:
        attempt.add_done_callback(_close_late)
        raise
    try:
        await _wait_connected(sock, deadline - loop.time())
    except BaseException:
        sock.close()
        raise
    return sock


async def is_ready(connect: Callable[[int], socket.socket], ready: Ready, pool: Pool) -> bool:
    """Return whether a job is ready now.

    Args:
        connect: see `connected`.
        ready: how that is found out.
        pool: of threads.
    """
    probe = asyncio.get_running_loop().create_task(_probe(connect, ready, pool))
    try:
        await asyncio.wait({probe}, timeout=PROBE_SECONDS)
        return probe.done() and probe.result()
    except OSError:
        return False
    finally:
        probe.cancel()
        with suppress(OSError, asyncio.CancelledError):
            await probe


async def _probe(connect: Callable[[int], socket.socket], ready: Ready, pool: Pool) -> bool:
    with await connected(connect, ready.port, pool, PROBE_SECONDS) as sock:
        return not ready.http or await _answers(sock, ready)


async def _answers(sock: socket.socket, ready: Ready) -> bool:
    loop = asyncio.get_running_loop()
    request = (
        f"GET {ready.http} HTTP/1.1\r\nHost: 127.0.0.1:{ready.port}\r\n"
        f"User-Agent: proxyctl/{__version__}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    await loop.sock_sendall(sock, request.encode("ascii"))
    line = b""
    while b"\n" not in line and len(line) < _LINE_MAX_BYTES:
        data = await loop.sock_recv(sock, _LINE_MAX_BYTES - len(line))
        if not data:
            return False
        line += data
    status = _STATUS.match(line)
    return status is not None and _SUCCESS_FIRST <= int(status[1]) <= _REDIRECTION_LAST


async def _wait_connected(sock: socket.socket, seconds: float) -> None:
    """Wait until a connect that is under way is done; raises OSError if it failed."""
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, _resolve, writable)
    try:
        await asyncio.wait({writable}, timeout=max(seconds, 0))
    finally:
        loop.remove_writer(sock)
    if not writable.done():
        raise TimeoutError("the job takes no connection")
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, "the job takes no connection")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _close_late(attempt: asyncio.Future[socket.socket]) -> None:
    """Close a connection that came too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
