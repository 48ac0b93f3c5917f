"""kill -9 in the middle of a transfer: nothing is billed that was not delivered, little is lost."""

import signal
import socket

import pytest
from support.base.waiting import until_true
from support.clients.downloads import completed, downloading, received
from support.daemons import process
from support.daemons.process import Process
from support.targets import threads


@pytest.mark.both_engines
async def test_killed_in_mid_transfer(store_url: str) -> None:
    url = store_url
    email, password = process.funded(url)
    with threads.endless() as target:
        with process.serving(url) as daemon:
            token = daemon.log_in(email, password)
            bought = daemon.buy(token, gb=100)
            with downloading([daemon] * 4, bought["proxy"], target.port) as downloads:
                until_true(lambda: received(downloads) > 50_000_000)
                seen = daemon.used(token, bought["session_id"])
                until_true(lambda: process.bytes_used(url, bought["session_id"]) >= seen, "written")
                daemon.stop(signal.SIGKILL)
                delivered = completed(downloads)
    process.assert_audit(url)
    with process.serving(url) as daemon:
        token = daemon.log_in(email, password)
        billed = daemon.used(token, bought["session_id"])
        assert 50_000_000 < seen <= billed <= delivered
        process.assert_audit(url)
        status, body = daemon.call(
            "POST", "/api/bandwidth/end", {"session_id": bought["session_id"]}, token
        )
        assert (status, body) == (200, {"ok": True})
        _, me = daemon.call("GET", "/auth/me", token=token)
        assert me["usd_balance"] == (100_000_000 - billed * 1_000_000 // 10**9) / 1_000_000
        process.assert_audit(url)


async def test_killed_while_both_directions_are_stuck(store_url: str) -> None:
    """Unread data makes the kernel reset at death, and drop what it had not sent."""
    url = store_url
    email, password = process.funded(url)
    with threads.stuck() as target:
        with process.serving(url) as daemon:
            token = daemon.log_in(email, password)
            bought = daemon.buy(token, gb=100)
            client = process.proxied(daemon, bought["proxy"], target.port)
            client.settimeout(0.5)
            uploaded = fill(client)
            until_true(target.is_stuck, "the target is stuck")
            session = bought["session_id"]
            until_true(lambda: daemon.used(token, session) > 1_000_000)
            until_true(lambda: process.bytes_used(url, session) > 0, "something is written")
            daemon.stop(signal.SIGKILL)
        downloaded = drained(client)
        delivered = downloaded + target.drained()
    billed = process.bytes_used(url, bought["session_id"])
    assert 0 < billed <= delivered
    assert uploaded > 0
    process.assert_audit(url)


async def test_killed_as_the_quota_runs_out(store_url: str) -> None:
    """The last bytes go down with the daemon, so the session is not used up."""
    url, quota = store_url, 200_000
    email, password = process.funded(url)
    with threads.web() as target:
        with process.serving(url) as daemon:
            token = daemon.log_in(email, password)
            bought = daemon.buy(token, gb=quota / 10**9)
            session = bought["session_id"]
            client = process.proxied(daemon, bought["proxy"], target.port, receive_buffer=4_096)
            client.settimeout(0.5)
            asked = b"GET /bytes/1000000 HTTP/1.1\r\n\r\n"
            client.sendall(asked)
            until_true(lambda: daemon.used(token, session) == quota, "the quota is used up")
            until_true(lambda: process.bytes_used(url, session) > len(asked), "some is written")
            fill(client)
            daemon.stop(signal.SIGKILL)
        delivered = len(asked) + drained(client)
    assert 0 < process.bytes_used(url, session) <= delivered < quota
    process.assert_audit(url)


def fill(client: socket.socket) -> int:
    """Send until nothing more is taken, and return how much was."""
    sent = 0
    while True:
        try:
            sent += client.send(bytes(65_536))
        except TimeoutError:
            return sent


def drained(client: socket.socket) -> int:
    """Read what is left until the end, in order or not, and return how much it was."""
    received = 0
    with client:
        try:
            while data := client.recv(65_536):
                received += len(data)
        except OSError:
            pass
    return received


async def test_a_session_goes_on_after_a_crash_with_its_rest(store_url: str) -> None:
    url = store_url
    email, password = process.funded(url)
    with threads.web() as target:
        with process.serving(url) as daemon:
            token = daemon.log_in(email, password)
            bought = daemon.buy(token, gb=0.000001)
            fetch(daemon, bought["proxy"], target.port, 400)
            until_true(lambda: daemon.used(token, bought["session_id"]) >= 400)
            used = daemon.used(token, bought["session_id"])
            until_true(
                lambda: process.bytes_used(url, bought["session_id"]) == used, "written down"
            )
            daemon.stop(signal.SIGKILL)
        with process.serving(url) as daemon:
            assert daemon.used(token, bought["session_id"]) == used
            got = fetch(daemon, bought["proxy"], target.port, 100_000)
            until_true(lambda: daemon.used(token, bought["session_id"]) == 1_000, "exhausted")
            assert used + len(got) <= 1_000
            _, body = daemon.call("GET", "/api/bandwidth/sessions?status=exhausted", token=token)
            assert [each["id"] for each in body["sessions"]] == [bought["session_id"]]
    process.assert_audit(url)


def fetch(daemon: Process, proxy: dict[str, str], port: int, size: int) -> bytes:
    with process.proxied(daemon, proxy, port) as connection:
        connection.sendall(f"GET /bytes/{size} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        received = b""
        try:
            while data := connection.recv(65_536):
                received += data
        except OSError:
            pass
        return received
