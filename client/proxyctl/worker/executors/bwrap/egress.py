"""A way out for jobs, where both the buyer and the owner of the device want one.

A job has a network namespace with nothing but a loopback. On a port of that the agent listens
(`netns.py`), with a proxy that speaks SOCKS5 and HTTP; so every connection is judged here, by the
same judges as connections of strangers through an exit: public addresses alone, no mail, nothing of
the owner's home. A name is looked up once, and only judged addresses are dialled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent import futures
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from proxyctl.attach.network.pace import Pace
from proxyctl.attach.relay.dial import Dialer, DialError, begin_connect
from proxyctl.protocol.frames import DialOutcome
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap import netns, proxying
from proxyctl.worker.executors.bwrap.proxying import AskingError, Wish

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from proxyctl.attach.network.lan import Guard
    from proxyctl.protocol.addresses import Address
    from proxyctl.worker.network.outward import Outward

PORT: Final = 1080  # on the job's own loopback
CONNECTIONS_MAX: Final = 64  # of one job at once; a client of packages opens a dozen
HANDSHAKE_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 600.0  # without a byte either way; a download that stands still is over
CHUNK_BYTES: Final = 64 << 10  # read at once, and all that is kept of a connection
BURST_SECONDS: Final = 0.5  # of the rate: the bytes that may go in one moment
_START_SECONDS: Final = 10.0
_SPARE_SECONDS: Final = 2.0  # for connections that are cut to notice it

_REFUSALS: Final = {
    DialOutcome.NOT_ALLOWED: (2, "403 Forbidden", "jobs may not reach this address or port"),
    DialOutcome.NAME_UNKNOWN: (4, "502 Bad Gateway", "there is no such name"),
    DialOutcome.REFUSED: (5, "502 Bad Gateway", "the target refused the connection"),
    DialOutcome.TIMED_OUT: (6, "504 Gateway Timeout", "the target did not answer"),
}
_FAILURE: Final = (1, "502 Bad Gateway", "the target could not be reached")
_USED_UP: Final = (2, "403 Forbidden", "the job has used up the bytes that it may move")


class Rules(NamedTuple):
    """The limits of one job's way out.

    Attributes:
        bytes_per_second: both ways together.
        max_bytes: both ways together, in all of its time.
    """

    bytes_per_second: int = 12_500_000  # 100 Mbit/s: a tenth of many home lines
    max_bytes: int = 50_000_000_000


class Egress:
    """The way out of all jobs; a thread with an event loop of its own.

    Args:
        outward: whose guard judges targets.
    """

    def __init__(self, outward: Outward, rules: Rules = Rules()) -> None:  # noqa: B008 - immutable
        self._outward = outward
        self._rules = rules
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._jobs: dict[str, _Job] = {}

    def env(self) -> dict[str, str]:
        """Return the variables that name the proxy to programs."""
        http, socks = f"http://127.0.0.1:{PORT}", f"socks5h://127.0.0.1:{PORT}"
        variables = {"HTTP_PROXY": http, "HTTPS_PROXY": http, "ALL_PROXY": socks}
        variables["NO_PROXY"] = "localhost,127.0.0.1"
        return {**variables, **{name.lower(): value for name, value in variables.items()}}

    def open(self, attempt_id: str, pid: int) -> None:
        """Serve a job, unless that is done already.

        Args:
            attempt_id: of the job.
            pid: of a process in its network namespace.

        Raises:
            TaskError: its namespace cannot be reached.
        """
        with self._lock:
            if attempt_id in self._jobs:
                return
            loop = self._running()
            try:
                listening = netns.listen_inside(pid, PORT)
            except OSError as error:
                raise TaskError("host", f"the job's network cannot be served: {error}") from None
            self._outward.refresh()
            job = _Job(self._outward.guard, self._rules, loop)
            try:
                _call(loop, job.serve(listening))
            except (OSError, futures.TimeoutError) as error:
                listening.close()
                raise TaskError("host", f"the job's network cannot be served: {error}") from None
            self._jobs[attempt_id] = job  # not before: a second try must not find it unserved

    def close(self, attempt_id: str) -> None:
        """Stop serving a job, and cut its connections."""
        with self._lock:
            job = self._jobs.pop(attempt_id, None)
            if job is not None and self._loop is not None:
                _call(self._loop, job.close())

    def used(self, attempt_id: str) -> int:
        """Return how many bytes a job has moved both ways; 0 if it is not served."""
        job = self._jobs.get(attempt_id)
        return job.used if job else 0

    def stop(self) -> None:
        """Serve no job any more, and end the thread."""
        for attempt_id in list(self._jobs):
            self.close(attempt_id)
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            _call(loop, _end_all())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="egress", daemon=True
            )
            self._thread.start()
        return self._loop


class _Flow:
    """The bytes of one connection, both ways together."""

    def __init__(self) -> None:
        self.bytes = 0


class _Job:
    """The connections of one job."""

    def __init__(self, guard: Guard, rules: Rules, loop: asyncio.AbstractEventLoop) -> None:
        self.used = 0
        self._rules = rules
        self._pace = Pace(rules.bytes_per_second, BURST_SECONDS, time.monotonic)
        self._dialer = Dialer(guard, begin_connect, loop)
        self._loop = loop
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def serve(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(
            self._accept, sock=listening, limit=proxying.HEAD_MAX_BYTES
        )

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            # asyncio loses a connection that it has accepted and has no transport for when its
            # server is closed: accept no more first, and let a turn go by.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SPARE_SECONDS)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One may have been taken from the kernel in the moment before the close.
        if self._is_closed or len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step closes nothing, so this closes the
        # connection.
        task.add_done_callback(lambda _: writer.close())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A job may send any bytes, and end at any time: none of it is a fault of this agent.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                await self._serve(reader, writer)
            except asyncio.CancelledError:
                writer.transport.abort()
                raise
            finally:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await _within(HANDSHAKE_SECONDS, reader.readexactly(1))
        is_socks = first == b"\x05"
        try:
            if is_socks:
                is_tunnel, wish = True, await _socks(first, reader, writer)
            else:
                head = first + await _within(HANDSHAKE_SECONDS, reader.readuntil(b"\r\n\r\n"))
                is_tunnel, wish = proxying.http_wish(head)
        except AskingError as error:
            if not is_socks:
                writer.write(proxying.http_refusal("400 Bad Request", str(error)))
            return
        if self.used >= self._rules.max_bytes:
            _refuse(writer, _USED_UP, is_socks=is_socks)
            return
        try:
            sock = await self._dialer.dial(_addresses(wish), wish.port, lambda _: True)
        except DialError as error:
            _refuse(writer, _REFUSALS.get(error.outcome, _FAILURE), is_socks=is_socks)
            return
        far_reader, far_writer = await asyncio.open_connection(sock=sock)
        try:
            if is_tunnel:
                writer.write(proxying.SOCKS_DONE if is_socks else proxying.HTTP_DONE)
            far_writer.write(wish.head)
            await self._relay(reader, writer, far_reader, far_writer)
        finally:
            far_writer.transport.abort()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        flow = _Flow()
        ways = {
            self._loop.create_task(self._pump(reader, far_writer, flow)),
            self._loop.create_task(self._pump(far_reader, writer, flow)),
        }
        try:
            before = -1
            while ways and flow.bytes != before:
                before = flow.bytes
                _, ways = await asyncio.wait(ways, timeout=IDLE_SECONDS)
        finally:
            for way in ways:
                way.cancel()
            if ways:
                await asyncio.wait(ways)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: _Flow
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                flow.bytes += len(data)
                self.used += len(data)
                if self.used > self._rules.max_bytes:
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
                pause = self._pace.take(len(data))
                if pause:
                    await asyncio.sleep(pause)
            if writer.can_write_eof():
                writer.write_eof()


async def _socks(first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Wish:
    """Read the two messages of a client of SOCKS5."""
    greeting = first + await _within(HANDSHAKE_SECONDS, reader.readexactly(1))
    left = proxying.socks_greeting_size(greeting) - len(greeting)
    greeting += await _within(HANDSHAKE_SECONDS, reader.readexactly(left))
    if not proxying.socks_accepts(greeting):
        writer.write(proxying.SOCKS_NO_METHOD)
        raise AskingError("SOCKS5: a client that wants to log in")
    writer.write(proxying.SOCKS_METHOD)
    request = await _within(HANDSHAKE_SECONDS, reader.readexactly(5))
    left = proxying.socks_request_size(request) - len(request)
    request += await _within(HANDSHAKE_SECONDS, reader.readexactly(left))
    try:
        return proxying.socks_wish(request)
    except AskingError:
        writer.write(proxying.socks_refusal(7))  # command not supported
        raise


def _addresses(wish: Wish) -> tuple[Address, ...] | str:
    return wish.host if isinstance(wish.host, str) else (wish.host,)


def _refuse(writer: asyncio.StreamWriter, refusal: tuple[int, str, str], *, is_socks: bool) -> None:
    code, status, words = refusal
    if is_socks:
        writer.write(proxying.socks_refusal(code))
    else:
        writer.write(proxying.http_refusal(status, words))


async def _within(seconds: float, reading: Coroutine[object, object, bytes]) -> bytes:
    """Wait for bytes; raise OSError when the time is over."""
    task = asyncio.get_running_loop().create_task(reading)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return task.result()
    finally:
        task.cancel()


async def _end_all() -> None:
    """End the tasks that are left in this loop: connections that were just accepted."""
    await asyncio.sleep(0)  # asyncio closes a socket whose transport it has begun to make
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_SPARE_SECONDS)
    await asyncio.sleep(0)  # sockets are closed in the next turn


def _call(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run_coroutine_threadsafe(coroutine, loop).result(_START_SECONDS)
