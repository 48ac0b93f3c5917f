"""On a short path the send buffer is fixed; on a long one the kernel has it back."""

import socket
import struct
from collections.abc import Iterator

import pytest

from proxyd.relay import sendbuffer
from proxyd.relay.sendbuffer import SHORT_PATH_BUFFER_BYTES, fit_send_buffer

SO_BUF_LOCK = 72
SOCK_SNDBUF_LOCK = 1


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
        left.sendall(b"x")  # so that there is a round trip to measure
        right.recv(1)
        yield left, right
        left.close()
        right.close()


def is_locked(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) & SOCK_SNDBUF_LOCK)


def test_what_is_short_is_fixed_and_what_is_long_is_given_back(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sendbuffer, "SHORT_PATH_MICROSECONDS", 60_000_000)
    assert fit_send_buffer(pair[0], is_fixed=False)
    assert is_locked(pair[0])
    size = pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert size == 2 * SHORT_PATH_BUFFER_BYTES  # the kernel doubles what it is asked for
    assert fit_send_buffer(pair[0], is_fixed=True)

    monkeypatch.setattr(sendbuffer, "SHORT_PATH_MICROSECONDS", 0)
    assert not fit_send_buffer(pair[0], is_fixed=True)
    assert not is_locked(pair[0])


def test_a_path_that_nobody_has_measured_is_left_alone() -> None:
    with socket.socket() as sock:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert not fit_send_buffer(sock, is_fixed=False)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before


def test_a_socket_that_is_no_tcp_connection_is_left_alone() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert not fit_send_buffer(left, is_fixed=False)


def test_the_round_trip_is_where_it_is_looked_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    info = pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (smoothed,) = struct.unpack_from("=I", info, 68)
    (least,) = struct.unpack_from("=I", info, 148)
    assert 0 < least <= max(smoothed, 1) * 8
