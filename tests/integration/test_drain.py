"""SIGTERM: no new work, live transfers to their end or to the limit, the last counts written."""

import signal
import socket
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import DOWNLOAD_BYTES as SIZE
from support.daemons.process import Process, begin
from support.targets import threads
from support.targets.targets import pattern


def rest(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as file:
        return file.read()


def until_reset(connection: socket.socket) -> int:
    """Read until the connection is cut, and return how many bytes there were."""
    received = 0
    with connection:
        while True:
            try:
                data = connection.recv(65_536)
            except ConnectionResetError:
                return received
            assert data, "cut, but told as an end in order"
            received += len(data)


def draining(daemon: Process) -> bool:
    return "draining: 1 connections" in daemon.output


def test_a_live_transfer_finishes_and_is_counted_to_the_byte(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url)
    limits = {"PROXYD_LIMITS__DRAIN_SECONDS": "3600"}
    with threads.web() as target, process.serving(url, **limits) as daemon:
        token = daemon.log_in(email, password)
        bought = daemon.buy(token)
        connection = begin(daemon, bought["proxy"], target.port)
        daemon.process.send_signal(signal.SIGTERM)
        until_true(lambda: draining(daemon))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", daemon.proxy_port))
        for path in ("/readyz", "/auth/me"):
            status, body = daemon.call("GET", path, token=token)
            assert (status, body["error"]["code"]) == (503, "draining")
        assert daemon.call("GET", "/healthz")[0] == 200
        answer = rest(connection)
        assert answer.endswith(pattern(SIZE))
        assert daemon.wait() == 0
        assert "stopped" in daemon.output
        assert process.bytes_used(url, bought["session_id"]) == target.received + target.sent
    process.assert_audit(url)


def test_a_transfer_beyond_the_limit_is_cut_and_its_bytes_are_billed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url)
    limits = {"PROXYD_LIMITS__DRAIN_SECONDS": "0.2"}
    with threads.web() as target, process.serving(url, **limits) as daemon:
        token = daemon.log_in(email, password)
        bought = daemon.buy(token)
        connection = begin(daemon, bought["proxy"], target.port)
        assert daemon.stop() == 0
        assert "cutting 1 connections" in daemon.output
        received = 1 + until_reset(connection)
        sent = len(f"GET /bytes/{SIZE} HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert process.bytes_used(url, bought["session_id"]) == received + sent
    process.assert_audit(url)


def test_a_second_signal_cuts_the_draining_short(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url)
    limits = {"PROXYD_LIMITS__DRAIN_SECONDS": "3600"}
    with threads.web() as target, process.serving(url, **limits) as daemon:
        bought = daemon.buy(daemon.log_in(email, password))
        with begin(daemon, bought["proxy"], target.port):
            daemon.process.send_signal(signal.SIGTERM)
            until_true(lambda: draining(daemon))
            assert daemon.stop() == 0
        assert "draining cut short by a second signal: 1 connections" in daemon.output
