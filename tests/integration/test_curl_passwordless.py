"""A real client that shows no password fetches through a session that names its address."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.targets import threads
from support.targets.targets import pattern
from support.targets.threads import WebTarget

SIZE = 300_001


@pytest.fixture
def target() -> Iterator[WebTarget]:
    with threads.web() as server:
        yield server


def curl(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "60", *arguments],
        capture_output=True,
        check=False,
    )


def buy(daemon: Process, token: str) -> tuple[str, int]:
    """Buy a session for this machine; return it and its port."""
    wanted = {"gb": 0.1, "allow_ips": ["127.0.0.1"]}
    status, body = daemon.call("POST", "/api/bandwidth/create", wanted, token)
    assert status == 200, body
    return str(body["session_id"]), int(body["proxy"]["passwordless_port"])


def test_curl_fetches_without_a_password(tmp_path: Path, target: WebTarget) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    login = process.funded(url)
    page = f"http://127.0.0.1:{target.port}/bytes/{SIZE}"
    with process.serving(url) as daemon:
        token = daemon.log_in(*login)
        session, port = buy(daemon, token)
        here = f"127.0.0.1:{port}"
        for way in (["-x", f"socks5h://{here}"], ["-x", here], ["-x", here, "--proxytunnel"]):
            done = curl(*way, page)
            assert done.returncode == 0, done.stderr
            assert done.stdout == pattern(SIZE)
        until_true(
            lambda: daemon.used(token, session) == target.received + target.sent,
            "every byte is counted",
        )
        stranger = curl("--interface", "127.0.0.2", "-x", here, page)
        assert stranger.stdout == b"No session lets this address in without a password.\n"
        stranger = curl("--interface", "127.0.0.2", "-x", f"socks5h://{here}", page)
        assert stranger.returncode == 97
        assert b"No authentication method was acceptable" in stranger.stderr
    process.assert_audit(url)


def test_a_daemon_that_was_killed_lets_the_same_clients_in(
    tmp_path: Path, target: WebTarget
) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    login = process.funded(url)
    page = f"http://127.0.0.1:{target.port}/bytes/7"
    with process.serving(url) as daemon:
        session, port = buy(daemon, daemon.log_in(*login))
        fixed = {"PROXYD_PROXY__PASSWORDLESS_PORTS": f"[{port}]"}
        assert curl("-x", f"127.0.0.1:{port}", page).stdout == pattern(7)
        daemon.stop(signal.SIGKILL)
    with process.serving(url, **fixed) as daemon:
        assert curl("-x", f"127.0.0.1:{port}", page).stdout == pattern(7)
        token = daemon.log_in(*login)
        ended, _ = daemon.call("POST", "/api/bandwidth/end", {"session_id": session}, token)
        assert ended == 200
        assert b"has ended" in curl("-x", f"127.0.0.1:{port}", page).stdout
