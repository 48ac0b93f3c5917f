"""Undocumented behaviour of aiohttp on which the API relies is unchanged."""

import asyncio

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from support.base.releases import assert_compared, assert_has

from api.http.aiohttp_compat import COMPARED_VERSION, PrivateProtocol, PrivateServer

SHIM = "api/http/aiohttp_compat.py"
REQUEST = b"GET /%d HTTP/1.1\r\nHost: proxyd\r\n\r\n"


class Transport(asyncio.Transport):
    """A client's connection in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_reading_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def writelines(self, pieces: object) -> None:
        self.sent += b"".join(pieces)  # type: ignore[arg-type]

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""


class Connected:
    """A connection to a server that answers when it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.served: list[str] = []
        self.server = PrivateServer(self._respond, access_log=None, lingering_time=3.0)
        self.transport = Transport()
        self.protocol = _Noting(self.server, loop=self.server.loop, **self.server.protocol_settings)
        self.protocol.connection_made(self.transport)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        self.served.append(request.path)
        await self.may_answer.wait()
        return web.Response(text="ok")


class _Noting(PrivateProtocol):
    __slots__ = ("notes",)

    def request_begins(self) -> None:
        self.notes = ["begins"]

    def request_ended(self) -> None:
        self.notes.append("ended")

    def handle_error(self, *args: object, **kwargs: object) -> web.StreamResponse:
        return web.Response(status=400, text="refused")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_installed_release_is_the_one_that_was_compared() -> None:
    assert_compared("aiohttp", COMPARED_VERSION, SHIM)


async def test_the_names_that_the_code_relies_on_exist() -> None:
    connected = Connected()
    assert_has("aiohttp", SHIM, connected.server, "_loop", "_kwargs")
    names = ("_loop", "_task_handler", "_request_count", "_messages", "_close", "_waiter")
    more = ("_max_msg_queue_size", "_msg_queue_resume_size", "_handle_request")
    assert_has("aiohttp", SHIM, connected.protocol, *names, *more)
    assert connected.server.protocol_settings == {"access_log": None, "lingering_time": 3.0}
    assert connected.server.loop is connected.protocol.loop is asyncio.get_running_loop()
    connected.protocol.connection_lost(None)


async def test_requests_are_counted_queued_and_served_one_after_the_other() -> None:
    connected = Connected()
    protocol = connected.protocol
    protocol.bound_queue(2)
    assert (protocol.parsed, protocol.queued) == (0, 0)
    protocol.data_received(REQUEST % 1)
    await turns()
    assert (protocol.parsed, protocol.queued) == (1, 0)
    assert protocol.serving in asyncio.all_tasks()
    assert protocol.notes == ["begins"]
    protocol.data_received(REQUEST % 2 + REQUEST % 3)
    assert (protocol.parsed, protocol.queued) == (3, 2)
    assert protocol.newest_body is EMPTY_PAYLOAD
    assert connected.transport.is_reading_paused
    connected.may_answer.set()
    await turns()
    await turns()
    assert connected.served == ["/1", "/2", "/3"]
    assert protocol.notes == ["begins", "ended"]
    assert not connected.transport.is_reading_paused
    assert connected.transport.sent.count(b"HTTP/1.1 200 OK") == 3
    protocol.connection_lost(None)


async def test_a_head_is_refused_and_nothing_is_read_behind_it() -> None:
    connected = Connected()
    await turns()
    assert not connected.protocol.reads_no_more
    connected.protocol.refuse(ValueError("no end"))
    assert connected.protocol.reads_no_more
    connected.protocol.data_received(REQUEST % 1)
    await turns()
    assert connected.served == []
    assert connected.transport.sent.startswith(b"HTTP/1.0 400 Bad Request")
    connected.protocol.connection_lost(None)


async def test_of_the_newest_requests_those_with_a_problem_are_refused() -> None:
    connected = Connected()
    connected.may_answer.set()
    connected.protocol.data_received(REQUEST % 1 + REQUEST % 2 + REQUEST % 3)
    connected.protocol.refuse_newest(
        2, lambda message: ValueError("no") if message.path in ("/1", "/2") else None
    )
    await turns()
    await turns()
    assert connected.served == ["/1"]
    assert connected.transport.sent.count(b"HTTP/1.0 400 Bad Request") == 1
    connected.protocol.connection_lost(None)


async def test_a_lost_connection_forgets_its_queue() -> None:
    connected = Connected()
    protocol = connected.protocol
    protocol.data_received(REQUEST % 1)
    await turns()
    protocol.data_received(REQUEST % 2 + REQUEST % 3)
    protocol.connection_lost(None)
    assert protocol.queued == 0
    connected.may_answer.set()
    await turns()
    assert connected.served == ["/1"]


async def test_a_connection_that_is_lost_with_the_request_that_it_waited_for_serves_nothing() -> (
    None
):
    connected = Connected()
    await turns()
    serving = connected.protocol.serving
    assert serving is not None
    connected.protocol.data_received(REQUEST % 1)
    connected.protocol.connection_lost(None)
    await turns()
    assert serving.cancelled()
    assert connected.served == []
