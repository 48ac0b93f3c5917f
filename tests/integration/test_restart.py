"""A restart with the sockets held: whoever comes meanwhile waits, and nobody is refused."""

import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import process, threads
from support.process import Process
from support.targets import pattern
from support.waiting import until_true

RATE = 200
SIZE = 1000


class Clients:
    """New connections at a steady rate, each of which fetches something."""

    def __init__(self, daemon: Process, proxy: dict[str, Any], port: int) -> None:
        self.served = 0
        self.failures: list[str] = []
        self._daemon = daemon
        self._proxy = proxy
        self._port = port
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._fetching: list[threading.Thread] = []
        self._starting = threading.Thread(target=self._start)
        self._starting.start()

    def stop(self) -> None:
        self._done.set()
        self._starting.join()
        for each in self._fetching:
            each.join()

    def _start(self) -> None:
        while not self._done.wait(1 / RATE):
            thread = threading.Thread(target=self._fetch)
            thread.start()
            self._fetching.append(thread)

    def _fetch(self) -> None:
        try:
            with process.proxied(self._daemon, self._proxy, self._port) as connection:
                connection.sendall(
                    f"GET /bytes/{SIZE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                with connection.makefile("rb") as file:
                    answer = file.read()
            assert answer.endswith(pattern(SIZE)), answer[:80]
        except (OSError, AssertionError) as error:
            with self._lock:
                self.failures.append(repr(error))
        else:
            with self._lock:
                self.served += 1


def test_no_new_connection_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    login = process.funded(url)
    with (
        threads.web() as target,
        socket.create_server(("127.0.0.1", 0), backlog=4096) as api,
        socket.create_server(("127.0.0.1", 0), backlog=4096) as proxy,
    ):
        first = Process(url, held=(api, proxy)).wait_ready()
        sold = first.buy(first.log_in(*login))["proxy"]
        clients = Clients(first, sold, target.port)
        until_true(lambda: clients.served > RATE, "they are served")
        assert first.stop() == 0
        between = time.monotonic()
        until_true(lambda: time.monotonic() > between + 0.2, "clients wait")
        second = Process(url, held=(api, proxy)).wait_ready()
        before = clients.served
        until_true(lambda: clients.served > before + RATE, "they are served again")
        clients.stop()
        assert clients.failures == []
        assert (second.api, second.proxy_port) == (first.api, first.proxy_port)
        assert second.stop() == 0


def test_what_is_handed_over_must_listen(tmp_path: Path) -> None:
    with socket.socket() as api, socket.create_server(("127.0.0.1", 0)) as proxy:
        daemon = Process(f"sqlite:///{tmp_path}/proxyd.db", held=(api, proxy))
        assert daemon.stop(signal.SIGCONT) == 1
        assert daemon.output == "proxyd: the api socket does not listen on a TCP port\n"


def test_settings_are_read_anew(tmp_path: Path) -> None:
    config = tmp_path / "proxyd.toml"
    config.write_text("[limits]\nconnections_per_session = 5\n")
    url = f"sqlite:///{tmp_path}/proxyd.db"
    login = process.funded(url)
    daemon = Process(url, "--config", str(config)).wait_ready()
    sold = daemon.buy(daemon.log_in(*login))["proxy"]
    with threads.web() as target:
        process.proxied(daemon, sold, target.port).close()
        config.write_text("[limits]\nconnections_per_session = -1\n")
        daemon.process.send_signal(signal.SIGHUP)
        until_true(lambda: "the new ones are wrong" in daemon.output, "wrong ones are refused")
        assert "limits.connections_per_session" in daemon.output
        process.proxied(daemon, sold, target.port).close()
        config.write_text("[limits]\nconnections_per_session = 1\n[market]\nsession_days = 3\n")
        daemon.process.send_signal(signal.SIGHUP)
        until_true(lambda: "settings read anew" in daemon.output, "right ones are applied")
        until_true(lambda: "changed in [market] waits" in daemon.output, "the rest is named")
        with (
            process.proxied(daemon, sold, target.port),
            pytest.raises(OSError, match=r"authentication|0x04"),
        ):
            process.proxied(daemon, sold, target.port)
    assert daemon.stop() == 0


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 40 + "\n")
    daemon = Process(
        f"sqlite:///{tmp_path}/proxyd.db",
        CREDENTIALS_DIRECTORY=str(tmp_path),
        PROXYD_AUTH__SIGNING_KEY="file:$CREDENTIALS_DIRECTORY/key",
    ).wait_ready()
    assert daemon.stop() == 0
    lost = Process(
        f"sqlite:///{tmp_path}/proxyd.db", PROXYD_AUTH__SIGNING_KEY=f"file:{tmp_path}/none"
    )
    assert lost.stop(signal.SIGCONT) == 2
    assert "PROXYD_AUTH__SIGNING_KEY: " in lost.output
    assert "cannot be read: No such file or directory" in lost.output
