"""Connections under TLS at the exits' port, with real sockets and clients that break the rules."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.exits.records import ALERT, END, HANDSHAKE, STREAM, RecordMaker, shake_hands
from support.targets.tls import make_certificate

from proxyd.exits.attached.tls import (
    IDLE_MAX_BYTES,
    UNSENT_MAX_BYTES,
    TlsConnection,
    TlsPort,
)
from proxyd.loop.reactor import BUFFER_BYTES

LONG_SECONDS = 60.0
SHORT_SECONDS = 0.1
MUCH = 4 * 1024 * 1024  # more than the buffers of two sockets and of the connection


class App(asyncio.Protocol):
    """Records what the connection passes on."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.calls: list[str] = []
        self.act: Callable[[bytes], object] = self.received.extend

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.act(data)

    def eof_received(self) -> None:
        self.calls.append("ended")

    def connection_lost(self, _error: Exception | None) -> None:
        self.calls.append("lost")

    def pause_writing(self) -> None:
        self.calls.append("paused")

    def resume_writing(self) -> None:
        self.calls.append("resumed")


class Server:
    """Takes connections in, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = make_certificate(folder).server
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self.connections: list[TlsConnection] = []
        self.wires: list[Any] = []  # the transports of TCP

    async def shake(
        self, *, shake_seconds: float = LONG_SECONDS, end_seconds: float = LONG_SECONDS
    ) -> tuple[socket.socket, App, "asyncio.Task[None]"]:
        """Return a client that has not said anything, the app for it, and the handshake."""
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            sock, _ = listener.accept()
        sock.setblocking(False)
        client.settimeout(LONG_SECONDS)
        app = App()
        tls_port = TlsPort(loop, self.context, self.view, shake_seconds, end_seconds)
        connection = TlsConnection(tls_port, app)
        self.connections.append(connection)
        wire, _ = await loop.connect_accepted_socket(lambda: cast("Any", connection), sock)
        self.wires.append(wire)
        return client, app, asyncio.create_task(connection.shaken())

    async def join(self, **seconds: float) -> tuple[ssl.SSLSocket, App]:
        """Return a client whose handshake is over, and the app for it."""
        sock, app, shaken = await self.shake(**seconds)
        client = await asyncio.to_thread(wrap, sock)
        await shaken
        return client, app

    async def join_bare(self, **seconds: float) -> tuple[socket.socket, RecordMaker, App]:
        """Return a client that makes its records by hand, and the app for it."""
        sock, app, shaken = await self.shake(**seconds)
        bare, maker = await asyncio.to_thread(shake_hands, sock, self.folder)
        await shaken
        return bare, maker, app


def wrap(sock: socket.socket) -> ssl.SSLSocket:
    """Shake hands as a client that takes no connection for ended before TLS says so."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock, suppress_ragged_eofs=False)


def read_to_end(client: ssl.SSLSocket) -> bytes:
    """Return all that comes; raise an error for a connection that is cut."""
    received = bytearray()
    while data := client.recv(65536):
        received += data
    return bytes(received)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """All its connections are lost when the test is over."""
    opened = Server(tmp_path)
    yield opened
    for each in opened.connections:
        each.abort()


async def test_streams_pass_both_ways_and_end_in_order(server: Server) -> None:
    client, app = await server.join()
    sent = bytes(range(256)) * (MUCH // 256)
    app.act = app.transport.write
    with client:
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, sent))
        received = bytearray()
        while len(received) < len(sent):
            received += await asyncio.to_thread(client.recv, 65536)
        await sending
        assert bytes(received) == sent
        app.transport.write(b"the last words")
        app.transport.close()
        app.transport.write(b"too late")
        assert app.transport.is_closing()
        assert await asyncio.to_thread(read_to_end, client) == b"the last words"
        await asyncio.to_thread(client.unwrap)
    await until(lambda: app.calls[-1] == "lost", "the connection is over")
    assert set(app.calls) <= {"made", "paused", "resumed", "lost"}


async def test_the_end_of_the_clients_stream_comes_before_the_loss(server: Server) -> None:
    client, app = await server.join()
    with client:
        client.sendall(b"words")
        await asyncio.to_thread(client.unwrap)
    await until(lambda: "lost" in app.calls, "the connection is over")
    assert app.calls == ["made", "ended", "lost"]
    assert bytes(app.received) == b"words"


async def test_a_client_that_does_not_end_its_stream_is_cut(server: Server) -> None:
    client, app = await server.join(end_seconds=SHORT_SECONDS)
    with client:
        app.transport.close()
        await until(lambda: app.calls == ["made", "lost"], "it is cut")


async def test_a_client_that_does_not_take_the_last_words_is_cut(server: Server) -> None:
    client, app = await server.join(end_seconds=SHORT_SECONDS)
    with client:
        app.transport.set_write_buffer_limits(65536)
        app.transport.write(bytes(MUCH * 4))
        assert app.calls == ["made", "paused"]
        assert app.transport.get_write_buffer_size() > 0
        app.transport.close()
        await until(lambda: app.calls[-1] == "lost", "it is cut")


async def test_writing_is_paused_while_the_client_reads_too_little(server: Server) -> None:
    client, app = await server.join()
    with client:
        app.transport.set_write_buffer_limits(65536)
        app.transport.write(bytes(MUCH * 4))
        assert app.calls == ["made", "paused"]
        read = 0
        while read < MUCH * 4:
            read += len(await asyncio.to_thread(client.recv, 65536))
        await until(lambda: app.calls == ["made", "paused", "resumed"], "it goes on")


async def test_a_client_that_leaves_without_an_end_is_lost(server: Server) -> None:
    client, app = await server.join()
    client.close()
    await until(lambda: app.calls == ["made", "lost"], "the loss was noticed")


async def test_bytes_that_are_no_record_cut_the_connection(server: Server) -> None:
    client, app = await server.join()
    with socket.socket(fileno=client.detach()) as bare:
        bare.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        await until(lambda: app.calls == ["made", "lost"], "it is cut")
    assert not app.received


async def test_a_paused_stream_is_bounded_and_complete(server: Server) -> None:
    client, app = await server.join()
    (wire,) = server.wires
    app.transport.pause_reading()
    with client:
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, bytes(8 * MUCH)))
        await until(lambda: not wire.is_reading(), "TCP holds the client back")
        assert not app.received
        assert not sending.done()
        app.transport.resume_reading()
        await sending
        await until(lambda: len(app.received) == 8 * MUCH, "everything has come")


async def test_a_paused_stream_that_is_closed_ends_in_order(server: Server) -> None:
    client, app = await server.join()
    (wire,) = server.wires
    app.transport.pause_reading()
    with client:
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, bytes(8 * MUCH)))
        await until(lambda: not wire.is_reading(), "TCP holds the client back")
        app.transport.close()
        await sending
        assert await asyncio.to_thread(read_to_end, client) == b""
        await asyncio.to_thread(client.unwrap)
    await until(lambda: app.calls == ["made", "lost"], "it is over")
    assert not app.received


async def test_a_stream_that_goes_on_for_a_moment_only_is_still_held_back(server: Server) -> None:
    client, app = await server.join()
    (wire,) = server.wires
    app.transport.pause_reading()
    with client:
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, bytes(8 * MUCH)))
        await until(lambda: not wire.is_reading(), "TCP holds the client back")
        app.transport.resume_reading()
        app.transport.pause_reading()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not wire.is_reading()
        app.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)
    assert not app.received


async def test_nothing_is_sent_for_a_write_of_nothing(server: Server) -> None:
    client, app = await server.join()
    with client:
        app.transport.write(b"")
        assert app.transport.get_write_buffer_size() == 0


async def test_the_loss_of_a_client_is_noticed_while_its_stream_is_paused(server: Server) -> None:
    client, app = await server.join()
    app.transport.pause_reading()
    client.sendall(b"unread")
    client.close()
    await until(lambda: app.calls == ["made", "lost"], "the loss was noticed")
    assert not app.received


async def test_an_error_of_the_protocol_cuts_the_connection(server: Server) -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    def fail(_data: bytes) -> None:
        raise RuntimeError("a fault in the protocol")

    for is_paused in (False, True):
        client, app = await server.join()
        app.act = fail
        with client:
            if is_paused:
                app.transport.pause_reading()
            size = MUCH * 8 if is_paused else 1
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, bytes(size)))
            if is_paused:
                await until(lambda: not server.wires[-1].is_reading(), "TCP holds it back")
                app.transport.resume_reading()
            await until(lambda app=app: app.calls == ["made", "lost"], "it is cut")
            await asyncio.gather(sending, return_exceptions=True)
    assert [str(each["exception"]) for each in logged] == ["a fault in the protocol"] * 2


async def test_another_protocol_gets_the_stream_from_then_on(server: Server) -> None:
    client, app = await server.join()
    other = App()
    app.transport.set_protocol(other)
    with client:
        client.sendall(b"words")
        await until(lambda: bytes(other.received) == b"words", "it has the words")
    await until(lambda: other.calls == ["lost"], "it has the loss")
    assert (app.calls, bytes(app.received)) == (["made"], b"")


@pytest.mark.parametrize(
    ("says", "error"),
    [
        pytest.param(b"", ConnectionAbortedError, id="nothing"),
        pytest.param(b"\x16\x03\x01\x00\x05GET /", ssl.SSLError, id="no handshake"),
    ],
)
async def test_a_handshake_that_fails_or_takes_long_is_cut(
    server: Server, says: bytes, error: type[Exception]
) -> None:
    client, app, shaken = await server.shake(shake_seconds=LONG_SECONDS if says else SHORT_SECONDS)
    with client:
        client.sendall(says)
        with pytest.raises(error):
            await shaken
        assert await asyncio.to_thread(client.recv, 1) == b""
    assert app.calls == []


async def test_a_client_that_leaves_within_the_handshake_fails_it(server: Server) -> None:
    client, app, shaken = await server.shake()
    client.close()
    with pytest.raises(ConnectionResetError):
        await shaken
    assert app.calls == []


async def test_an_abort_cancels_the_handshake(server: Server) -> None:
    client, app, shaken = await server.shake()
    with client:
        await asyncio.sleep(0)
        server.connections[0].abort()
        with pytest.raises(asyncio.CancelledError):
            await shaken
        assert await asyncio.to_thread(client.recv, 1) == b""
    assert app.calls == []


# --- clients that make their records by hand ---------------------------------------------------


def count_to_end(bare: socket.socket) -> int:
    """Return the number of bytes until the end of TCP; raise an error for a connection cut."""
    number = 0
    while data := bare.recv(1 << 20):
        number += len(data)
    return number


async def test_the_last_words_reach_a_client_that_ends_its_own_stream_meanwhile(
    server: Server,
) -> None:
    bare, maker, app = await server.join_bare()
    with bare:
        app.transport.write(bytes(4 * MUCH))
        app.transport.close()
        assert app.transport.get_write_buffer_size() > MUCH
        bare.sendall(maker.record(ALERT, END))
        bare.shutdown(socket.SHUT_WR)
        await until(server.wires[0].is_closing, "both sides have ended")
        assert await asyncio.to_thread(count_to_end, bare) > 4 * MUCH
    await until(lambda: app.calls[-1] == "lost", "the connection is over")


async def test_a_paused_stream_that_has_ended_is_passed_on_later(server: Server) -> None:
    bare, maker, app = await server.join_bare()
    app.transport.pause_reading()
    with bare:
        bare.sendall(maker.record(STREAM, b"the last words") + maker.record(ALERT, END))
        bare.shutdown(socket.SHUT_WR)
        await until(lambda: not server.wires[0].is_reading(), "the end of TCP was read")
        assert app.calls == ["made"]
        app.transport.write(b"an answer")
        app.transport.resume_reading()
        await until(lambda: app.calls == ["made", "ended", "lost"], "it has ended")
        assert bytes(app.received) == b"the last words"
        assert await asyncio.to_thread(count_to_end, bare) > len(b"an answer")


async def test_a_client_that_leaves_and_does_not_take_the_last_words_is_cut(
    server: Server,
) -> None:
    bare, _, app = await server.join_bare(end_seconds=SHORT_SECONDS)
    with bare:
        app.transport.write(bytes(4 * MUCH))
        bare.shutdown(socket.SHUT_WR)
        await until(lambda: app.calls[-1] == "lost", "it is cut")


@pytest.mark.parametrize("is_ending", [False, True])
async def test_records_without_a_stream_are_bounded(server: Server, is_ending: bool) -> None:
    bare, maker, app = await server.join_bare()
    if is_ending:
        app.transport.close()
    with bare:
        few = maker.key_updates(20)
        bare.sendall(few)
        if not is_ending:
            bare.sendall(maker.record(STREAM, b"words"))
            await until(lambda: bytes(app.received) == b"words", "few of them are allowed")
        many = maker.key_updates(IDLE_MAX_BYTES // (len(few) // 20) + 1)
        bare.sendall(many)
        await until(lambda: app.calls == ["made", "lost"], "it is cut")


async def test_a_stream_of_single_bytes_passes(server: Server) -> None:
    bare, maker, app = await server.join_bare()
    number = IDLE_MAX_BYTES + 1  # so one byte too many in each record would be noticed
    with bare:
        for _ in range(number):
            bare.sendall(maker.record(STREAM, b"."))
        await until(lambda: len(app.received) == number, "everything has come")
    await until(lambda: app.calls == ["made", "lost"], "it is over")


async def test_answers_to_records_are_bounded_while_the_client_does_not_read(
    server: Server,
) -> None:
    bare, maker, app = await server.join_bare()
    with bare:
        app.transport.write(bytes(4 * MUCH))
        assert app.transport.get_write_buffer_size() > UNSENT_MAX_BYTES
        bare.sendall(maker.record(STREAM, b"words"))
        await until(lambda: bytes(app.received) == b"words", "a stream asks for no answer")
        bare.sendall(maker.key_updates(2))
        await until(lambda: app.calls[-1] == "lost", "it is cut")


@pytest.mark.parametrize(
    ("kind", "data", "number"),
    [
        pytest.param(STREAM, b"", 100, id="empty records"),
        pytest.param(STREAM, bytes(16 * 1024 + 1), 1, id="a record that is too large"),
        pytest.param(HANDSHAKE, b"\x01\x00\x00\x02\x03\x03", 1, id="a second hello"),
        pytest.param(HANDSHAKE, b"\x18\xff\xff\xff", 1, id="a message that is too large"),
        pytest.param(ALERT, b"\x02\x28", 1, id="a fatal alert"),
        pytest.param(99, b"?", 1, id="an unknown kind"),
    ],
)
async def test_records_that_break_the_rules_cut_the_connection(
    server: Server, kind: int, data: bytes, number: int
) -> None:
    bare, maker, app = await server.join_bare()
    with bare:
        bare.sendall(b"".join(maker.record(kind, data) for _ in range(number)))
        await until(lambda: app.calls == ["made", "lost"], "it is cut")
    assert not app.received


async def test_records_behind_the_end_of_the_stream_are_dropped(server: Server) -> None:
    bare, maker, app = await server.join_bare()
    with bare:
        bare.sendall(
            maker.record(STREAM, b"words") + maker.record(ALERT, END) + maker.record(STREAM, b"no")
        )
        await until(lambda: app.calls == ["made", "ended", "lost"], "it has ended")
    assert bytes(app.received) == b"words"


async def test_an_app_that_closes_hears_nothing_of_the_end(server: Server) -> None:
    bare, maker, app = await server.join_bare()
    app.act = lambda _: app.transport.close()
    with bare:
        bare.sendall(maker.record(STREAM, b"words") + maker.record(ALERT, END))
        await until(lambda: app.calls == ["made", "lost"], "it is over")


@pytest.mark.parametrize("size", [1, 65536])
async def test_a_handshake_passes_in_parts_of_any_size_with_the_first_words_behind_it(
    server: Server, size: int
) -> None:
    sock, app, shaken = await server.shake()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(received, to_send)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        is_shaken = False
        while not is_shaken:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                is_shaken = True
                client.write(b"words")
            while part := to_send.read(size):
                sock.sendall(part)
                await asyncio.sleep(0)
            if not is_shaken:
                received.write(await asyncio.to_thread(sock.recv, 65536))
        await shaken
        await until(lambda: bytes(app.received) == b"words", "the words are passed on")


async def test_a_handshake_that_was_cancelled_before_it_began_leaves_no_connection(
    server: Server,
) -> None:
    loop = asyncio.get_running_loop()
    app = App()
    connection = TlsConnection(
        TlsPort(loop, server.context, server.view, LONG_SECONDS, LONG_SECONDS), app
    )
    connection.abort()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    sock.setblocking(False)
    client.settimeout(LONG_SECONDS)
    with client:
        await loop.connect_accepted_socket(lambda: cast("Any", connection), sock)
        assert await asyncio.to_thread(client.recv, 1) == b""
    with pytest.raises(asyncio.CancelledError):
        await connection.shaken()
    assert app.calls == []


def alive() -> int:
    """Return the number of connections in memory: they allow no weak references."""
    return sum(isinstance(each, TlsConnection) for each in gc.get_objects())


async def test_a_failed_handshake_is_freed_without_the_collector(server: Server) -> None:
    gc.collect()
    gc.disable()
    before = alive()
    try:
        client, _, shaken = await server.shake()
        with client:
            client.sendall(b"\x16\x03\x01\x00\x05GET /")
            with pytest.raises(ssl.SSLError):
                await shaken
            assert await asyncio.to_thread(client.recv, 1) == b""
        # An error that is kept here has its trace, and so the frames that have waited.
        del shaken
        server.connections.clear()
        server.wires.clear()
        await until(lambda: alive() == before, "nothing refers to it")
    finally:
        gc.enable()


async def test_a_failure_that_nobody_waits_for_is_not_logged(server: Server) -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    gc.collect()
    before = alive()
    client, _, shaken = await server.shake()
    shaken.cancel()  # before it has begun to wait
    client.close()
    await until(server.wires[0].is_closing, "the handshake has failed")
    with pytest.raises(asyncio.CancelledError):
        await shaken
    server.connections.clear()
    server.wires.clear()
    del shaken
    await until(lambda: alive() == before, "nothing refers to it")
    assert logged == []
