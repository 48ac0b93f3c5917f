"""On a short path buffers are bounded and nothing is paced; on a long one it is undone."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from proxyctl.attach.relay.path import ShortPath, fit_to_path

SO_BUF_LOCK = 72
A_MINUTE = 60_000_000  # microseconds: longer than any round trip within this machine
SEND_LOCK, RECEIVE_LOCK = 1, 2


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
        left.sendall(b"x")  # for a round trip that can be measured
        right.recv(1)
        yield left, right
        left.close()
        right.close()


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def locks(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)


def test_a_short_path_is_fitted_and_a_long_one_is_given_back(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sock = pair[0]
    before = congestion_control(sock)
    short = ShortPath(A_MINUTE, send_bytes=50_000, receive_bytes=60_000)
    assert fit_to_path(sock, was_short=False, short_path=short)
    assert fit_to_path(sock, was_short=True, short_path=short)
    assert locks(sock) == SEND_LOCK | RECEIVE_LOCK
    assert congestion_control(sock) == b"reno"
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000  # doubled by the kernel
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000

    none = replace(short, microseconds=0)
    assert not fit_to_path(sock, was_short=True, short_path=none)
    assert not fit_to_path(sock, was_short=False, short_path=none)
    assert locks(sock) == 0
    assert congestion_control(sock) == before


def test_a_buffer_for_which_less_is_allowed_stays_with_the_kernel(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    short = ShortPath(A_MINUTE, send_bytes=50_000, receive_bytes=2**30)
    assert fit_to_path(pair[0], was_short=False, short_path=short)
    assert locks(pair[0]) == SEND_LOCK


def test_an_unmeasured_path_is_left_alone() -> None:
    with socket.socket() as sock:
        assert not fit_to_path(sock, was_short=False)
        assert locks(sock) == 0


def test_a_socket_that_is_no_tcp_connection_is_left_alone() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert not fit_to_path(left, was_short=False)


def test_the_round_trip_is_where_it_is_looked_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    info = pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (smoothed,) = struct.unpack_from("=I", info, 68)
    (least,) = struct.unpack_from("=I", info, 148)
    assert 0 < least <= max(smoothed, 1) * 8
