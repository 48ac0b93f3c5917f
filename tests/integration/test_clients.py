"""Real clients fetch through a bought session, and every byte is counted, up and down."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import socks
from python_socks.sync import Proxy
from support import process, threads
from support.process import Process
from support.targets import pattern
from support.threads import WebTarget
from support.waiting import until_true

SIZE = 3_000_001


@dataclass
class Buyer:
    """Somebody with a session, on a running daemon."""

    daemon: Process
    token: str
    session_id: str
    username: str
    password: str

    @property
    def proxy(self) -> str:
        return f"{self.username}:{self.password}@127.0.0.1:{self.daemon.proxy_port}"

    def assert_counted(self, target: WebTarget) -> None:
        """Check the bytes used against what the target saw."""
        until_true(
            lambda: self.used == target.received + target.sent,
            f"{self.used} used == {target.received} received + {target.sent} sent",
        )

    @property
    def used(self) -> int:
        return self.daemon.used(self.token, self.session_id)


@pytest.fixture
def buyer(tmp_path: Path) -> Iterator[Buyer]:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url)
    with process.serving(url) as daemon:
        token = daemon.log_in(email, password)
        bought = daemon.buy(token)
        proxy = bought["proxy"]
        yield Buyer(daemon, token, bought["session_id"], proxy["username"], proxy["password"])
        audit = process.run(url, "ledger", "audit")
        assert audit.returncode == 0, audit.stdout


@pytest.fixture
def target() -> Iterator[WebTarget]:
    with threads.web() as server:
        yield server


def curl(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    assert shutil.which("curl"), "curl is one of the four things a machine needs"
    return subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "60", *arguments],
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
def test_curl_downloads(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    if scheme == "socks5":
        url = url.replace("localhost", "127.0.0.1")
    done = curl("--proxy", f"{scheme}://{buyer.proxy}", url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_uploads(buyer: Buyer, target: WebTarget, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(pattern(SIZE))
    done = curl(
        *("--proxy", f"socks5h://{buyer.proxy}", "--data-binary", f"@{body}"),
        *("-H", "Expect:", f"http://127.0.0.1:{target.port}/"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)
    assert buyer.used > 2 * SIZE


@pytest.mark.parametrize("option", ["--proxytunnel", "--proxy-anyauth"])
def test_curl_downloads_by_http(buyer: Buyer, target: WebTarget, option: str) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"http://{buyer.proxy}", option, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_fetches_twice_by_http(buyer: Buyer, target: WebTarget) -> None:
    url = f"http://127.0.0.1:{target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"http://{buyer.proxy}", "--proxy-anyauth", url, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE) * 2
    buyer.assert_counted(target)


def test_curl_uploads_by_http(buyer: Buyer, target: WebTarget, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(pattern(SIZE))
    done = curl(
        *("--proxy", f"http://{buyer.proxy}", "--data-binary", f"@{body}"),
        *("-H", "Expect: 100-continue", f"http://127.0.0.1:{target.port}/"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_is_told_by_http_what_is_wrong(buyer: Buyer, target: WebTarget) -> None:
    wrong = f"http://{buyer.username}:wrong@127.0.0.1:{buyer.daemon.proxy_port}"
    page = f"http://127.0.0.1:{target.port}/bytes/1"
    told = curl("--proxy", wrong, "-w", "%{http_code}", page)
    assert told.stdout == b"The user name or the password of the session is wrong.\n407"
    tunnelled = curl("--proxy", wrong, "--proxytunnel", page)
    assert tunnelled.returncode != 0
    assert b"407" in tunnelled.stderr
    assert buyer.used == 0


def test_curl_is_told_that_its_password_is_wrong(buyer: Buyer, target: WebTarget) -> None:
    done = curl(
        "--proxy",
        f"socks5h://{buyer.username}:wrong@127.0.0.1:{buyer.daemon.proxy_port}",
        f"http://127.0.0.1:{target.port}/bytes/1",
    )
    assert done.returncode == 97
    assert b"rejected" in done.stderr
    assert buyer.used == 0


def test_curl_is_told_that_a_target_refuses(buyer: Buyer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = curl("--proxy", f"socks5h://{buyer.proxy}", f"http://127.0.0.1:{port}/")
    assert done.returncode == 97
    assert b"(5)" in done.stderr or b"refused" in done.stderr


def fetch(connection: socket.socket, port: int) -> bytes:
    with connection:
        head = f"GET /bytes/{SIZE} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as file:
            return file.read().partition(b"\r\n\r\n")[2]


def test_pysocks_fetches(buyer: Buyer, target: WebTarget) -> None:
    connection = socks.create_connection(
        ("localhost", target.port),
        proxy_type=socks.SOCKS5,
        proxy_addr="127.0.0.1",
        proxy_port=buyer.daemon.proxy_port,
        proxy_username=buyer.username,
        proxy_password=buyer.password,
        proxy_rdns=True,
    )
    assert fetch(connection, target.port) == pattern(SIZE)
    buyer.assert_counted(target)


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_python_socks_fetches(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    proxy = Proxy.from_url(f"{scheme}://{buyer.proxy}", rdns=True)
    connection = proxy.connect(dest_host="localhost", dest_port=target.port)
    assert fetch(connection, target.port) == pattern(SIZE)
    buyer.assert_counted(target)
