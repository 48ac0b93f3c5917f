"""A restart under load, its sockets held open elsewhere: every client is accepted and served."""

import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
import socks
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.supervisor import Supervisor, supervising
from support.targets import threads

PER_SECOND = 200
CLIENTS = 40
# A busy machine finishes its connections within this time.
PATIENT = {"PROXYD_LIMITS__DRAIN_SECONDS": "60"}


class Load:
    """Clients that fetch a small page through the proxy, each over a new connection."""

    def __init__(self, supervisor: Supervisor, proxy: dict[str, str], target: int) -> None:
        self._supervisor = supervisor
        self._proxy = proxy
        self._target = target
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.served = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                outcome = self._fetch()
            except (OSError, socks.ProxyError) as error:
                outcome = repr(error)
            with self._lock:
                if outcome:
                    self.failures.append(outcome)
                else:
                    self.served += 1
            self._over.wait(max(0.0, CLIENTS / PER_SECOND - (time.monotonic() - began)))

    def _fetch(self) -> str:
        """Return the failure."""
        with socks.create_connection(
            ("127.0.0.1", self._target),
            timeout=60,
            proxy_type=socks.SOCKS5,
            proxy_addr="127.0.0.1",
            proxy_port=self._supervisor.port("proxy"),
            proxy_username=self._proxy["username"],
            proxy_password=self._proxy["password"],
        ) as sock:
            sock.sendall(b"GET /bytes/100 HTTP/1.1\r\nConnection: close\r\n\r\n")
            with sock.makefile("rb") as file:
                answer = file.read()
        return "" if answer.startswith(b"HTTP/1.1 200") else f"cut short: {answer!r}"


def buy(supervisor: Supervisor, email: str, password: str) -> dict[str, str]:
    asking = process.Api(f"http://127.0.0.1:{supervisor.port('api')}")
    return dict(asking.buy(asking.log_in(email, password))["proxy"])


@pytest.mark.long
def test_a_restart_under_load_loses_no_new_connection(tmp_path: Path) -> None:
    with supervising(tmp_path) as supervisor, threads.web() as target:
        email, password = process.funded(supervisor.url)
        supervisor.start(**PATIENT)
        proxy = buy(supervisor, email, password)
        with Load(supervisor, proxy, target.port) as load:
            for _ in range(2):
                enough = load.served + 150
                until_true(lambda enough=enough: load.served >= enough, "served")
                supervisor.signal(signal.SIGTERM)
                assert supervisor.wait() == 0
                socket.create_connection(("127.0.0.1", supervisor.port("proxy"))).close()
                supervisor.start(**PATIENT)
            enough = load.served + 150
            until_true(lambda: load.served >= enough, "served")
        assert load.failures == []
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        until_true(lambda: supervisor.count("STOPPING=1") == 3, "told")
    process.assert_audit(supervisor.url)


class Callers:
    """Clients that connect to every port, again and again, and say nothing."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._over = threading.Event()
        self.connected = dict.fromkeys(ports, 0)
        self.refused: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in ports]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _run(self, name: str) -> None:
        # Five a second: the API cuts the oldest connections beyond the bound of one network, and a
        # start may be slow.
        while not self._over.wait(0.2):
            try:
                socket.create_connection(("127.0.0.1", self._ports[name]), timeout=30).close()
            except OSError as error:
                self.refused.append(f"{name}: {error!r}")
            else:
                self.connected[name] += 1


EVERY_PORT = ("api", "proxy", "passwordless", "exits", "apps")
EVERY_PART = {"PROXYD_EXITS__HOST": "127.0.0.1", "PROXYD_APPS__HOST": "127.0.0.1"}
GREETINGS = {"api": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "proxy": b"\x05\x01\x02"}
GREETINGS |= {"apps": GREETINGS["api"], "passwordless": b"\x05\x01\x00"}


def test_a_restart_refuses_no_client_of_any_port(tmp_path: Path) -> None:
    with supervising(tmp_path, EVERY_PORT) as supervisor:
        supervisor.start(**EVERY_PART)
        ports = {name: supervisor.port(name) for name in EVERY_PORT}
        with Callers(ports) as callers, ExitStack() as stack:
            until_true(lambda: min(callers.connected.values()) > 5, "all ports take clients")
            supervisor.signal(signal.SIGTERM)
            assert supervisor.wait() == 0
            between = {
                name: stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                for name, port in ports.items()
            }
            before = dict(callers.connected)
            until_true(
                lambda: all(count > before[name] for name, count in callers.connected.items()),
                "all ports take clients while there is no daemon",
            )
            supervisor.start(**EVERY_PART)
            for name, greeting in GREETINGS.items():
                between[name].sendall(greeting)
                assert between[name].recv(5), name
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            between["exits"] = context.wrap_socket(between["exits"])
            stack.enter_context(between["exits"])
            assert between["exits"].version() == "TLSv1.3"
        assert callers.refused == []
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0


def test_a_socket_of_a_part_that_is_off_is_a_mistake(tmp_path: Path) -> None:
    """Nothing would answer its clients, who would wait for ever."""
    with supervising(tmp_path, EVERY_PORT) as supervisor:
        with pytest.raises(AssertionError):
            supervisor.start(PROXYD_PROXY__PASSWORDLESS_PORTS="[]")
        for setting in ("proxy.passwordless_ports", "exits.host", "apps.host"):
            assert f"{setting}: must be set" in supervisor.log
        assert supervisor.wait() == 2


def test_systemd_is_notified_of_every_step_and_that_the_loop_turns(tmp_path: Path) -> None:
    """Its status has the real addresses of the sockets, as the log has."""
    with supervising(tmp_path) as supervisor:
        supervisor.start(PROXYD_API__HOST="127.0.0.9", PROXYD_PROXY__HOST="127.0.0.9")
        api, proxy = supervisor.port("api"), supervisor.port("proxy")
        words = f"API on http://127.0.0.1:{api}, proxy on 127.0.0.1:{proxy}, "
        assert f"ready: {words}" in supervisor.log
        until_true(lambda: any(told.startswith(f"STATUS={words}") for told in supervisor.told))
        until_true(lambda: supervisor.count("WATCHDOG=1") >= 3, "watchdog")
        supervisor.signal(signal.SIGHUP)
        until_true(lambda: supervisor.count("READY=1") == 2, "reloaded")
        assert supervisor.count("RELOADING=1") == 1
        assert any(line.startswith("MONOTONIC_USEC=") for line in supervisor.told)
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        until_true(lambda: supervisor.count("STOPPING=1") == 1, "told")
        assert supervisor.told.index("STOPPING=1") > supervisor.told.index("RELOADING=1")


def config(folder: Path, level: str, extra: str = "") -> Path:
    path = folder / "proxyd.toml"
    path.write_text(f'[log]\nlevel = "{level}"\n{extra}')
    return path


def test_sighup_takes_the_reloadable_settings_and_names_the_others(tmp_path: Path) -> None:
    path = config(tmp_path, "info")
    with supervising(tmp_path) as supervisor:
        supervisor.start("--config", str(path))
        config(tmp_path, "wrong")
        supervisor.signal(signal.SIGHUP)
        until_true(lambda: "not reloaded, the old settings stay: log.level" in supervisor.log)
        config(tmp_path, "debug", "[limits]\nidle_seconds = 7\n[market]\nsession_days = 3\n")
        supervisor.signal(signal.SIGHUP)
        until_true(
            lambda: "these change with a restart only: market.session_days" in supervisor.log
        )
        assert "reloaded: limits.idle_seconds, log.level" in supervisor.log
        with socket.create_connection(("127.0.0.1", supervisor.port("proxy"))) as client:
            client.sendall(b"\x04")
            until_true(lambda: "DEBUG gateway" in supervisor.log, "a debug line")


def certificate(folder: Path, name: str) -> None:
    """Make a certificate for a name, in the place of an earlier one."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem"
    subprocess.run(
        [*command.split(), "-subj", f"/CN={name}"],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def presented(port: int) -> bytes:
    """Return the certificate that a new connection is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_sighup_takes_a_renewed_certificate_and_refuses_a_broken_one(tmp_path: Path) -> None:
    certificate(tmp_path, "first.test")
    tls = {
        "PROXYD_API__TLS_CERT": str(tmp_path / "cert.pem"),
        "PROXYD_API__TLS_KEY": str(tmp_path / "key.pem"),
    }
    with supervising(tmp_path) as supervisor:
        supervisor.start(**tls)
        port = supervisor.port("api")
        first = (tmp_path / "cert.pem").read_bytes()
        assert presented(port) == first
        (tmp_path / "cert.pem").write_text("nothing")
        supervisor.signal(signal.SIGHUP)
        until_true(lambda: "not reloaded, the old settings stay: cannot use" in supervisor.log)
        assert presented(port) == first
        certificate(tmp_path, "second.test")
        supervisor.signal(signal.SIGHUP)
        until_true(lambda: "reloaded: the certificate" in supervisor.log)
        assert presented(port) == (tmp_path / "cert.pem").read_bytes() != first
