"""The command that requests the health: of a daemon, of none, and of a stranger's server."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.daemons import process
from support.daemons.process import serving
from support.daemons.service import settings_for

from proxyd.cli.health import health_of


def test_the_health_of_a_daemon_that_runs_and_of_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    with serving(url) as daemon:
        port = daemon.api.rpartition(":")[2]
        done = process.run(url, "health", PROXYD_API__PORT=port)
        assert (done.returncode, done.stdout) == (0, f"127.0.0.1:{port} is ready\n")
        every = {"PROXYD_API__PORT": port, "PROXYD_API__HOST": "0.0.0.0"}
        done = process.run(url, "health", "--json", **every)
        assert json.loads(done.stdout)["ready"] is True
    done = process.run(url, "health", PROXYD_API__PORT=port)
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not answer" in done.stderr
    unknown = process.run(url, "health", PROXYD_API__PORT="0")
    assert (unknown.returncode, "api.port is 0" in unknown.stderr) == (1, True)


@contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """Run a server that sends some bytes to each client, and never closes a connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        kept = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                kept.append(client)
                client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in kept:
            each.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not answer"),
        (b"", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "does not answer"),
        (b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n[]", "status 503"),
        (b'HTTP/1.1 503 x\r\nContent-Length: 28\r\n\r\n{"error": {"message": "no"}}', "ready: no"),
        (b"HTTP/1.1 302 x\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n", "status 302"),
    ],
)
def test_a_server_that_is_no_ready_daemon_is_not_healthy(answer: bytes, words: str) -> None:
    with stranger(answer) as port:
        health = health_of(settings_for("sqlite:///x.db", api={"port": port}), 0.3)
    assert not health.is_ready
    assert words in health.words
