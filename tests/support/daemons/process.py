"""A daemon as a process of its own, as an operator runs it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil
import socks

from config.load import load
from market.money.money import MICRO, Currency
from proxyd.cli import bookkeeping
from storage.bandwidth import sessions as bandwidth
from storage.engines.open import open_store
from storage.engines.place import SQLITE
from support.base.aside import run_aside
from support.base.waiting import until_true
from support.daemons.forked import ForkedProcess, Forker
from support.database import sqlite

ROOT = Path(__file__).parent.parent.parent.parent
READY = re.compile(r"ready: API on (?P<api>\S+), proxy on \S+:(?P<port>\d+)")
ALL_READY = re.compile(r"supervisor: \d+ of \d+ processes are ready: ")
PROCESSES = "PROXYD_PROXY__PROCESSES"
DOWNLOAD_BYTES = 30_000_000
RUN_SECONDS = 60.0
NODE = re.compile(r"this is node (\S+)")

ENVIRONMENT = {
    "PROXYD_API__PORT": "0",
    "PROXYD_PROXY__PORT": "0",
    "PROXYD_AUTH__SIGNING_KEY": "k" * 40,
    "PROXYD_AUTH__ARGON2_TIME_COST": "1",
    "PROXYD_AUTH__ARGON2_MEMORY_KIB": "64",
    "PROXYD_EGRESS__ALLOW": '["127.0.0.0/8", "::1/128"]',
    "PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": "4",
    "PROXYD_LIMITS__DRAIN_SECONDS": "5",
    "PROXYD_LIMITS__REGISTRATIONS_PER_HOUR": "0",
    "PROXYD_LIMITS__REQUESTS_PER_SECOND": "0",
    "PROXYD_STAFF__APPROVAL_USD": "1000000",
    "PROXYD_STAFF__APPROVAL_CREDITS": "1000000",
}


def environment(url: str, **settings: str) -> dict[str, str]:
    """Return the environment of a process on the database at `url`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "PROXYD_INTERPRETED" or "PROXY" not in name.upper()
    }
    return {**inherited, **ENVIRONMENT, "PROXYD_STORAGE__URL": url, **settings}


def fork(
    forker: Forker,
    program: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    leads: bool,
) -> ForkedProcess:
    """Fork a daemon whose output is read from a pipe, both kinds from one."""
    readable, writable = os.pipe()
    try:
        standard = (0, writable, writable)
        forked = forker.start(program, arguments, variables, standard, leads=leads)
    except BaseException:
        os.close(readable)
        raise
    finally:
        os.close(writable)
    forked.stdout = os.fdopen(readable, encoding="utf-8")
    return forked


def is_setting(name: str) -> bool:
    """Return whether a variable is for the daemon only, not for Python or an imported module."""
    return name.startswith("PROXYD_") and name != "PROXYD_INTERPRETED"


def run(
    url: str, *arguments: str, stdin: str = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; while `forking` it is forked, as a daemon is (`Process`)."""
    with ExitStack() as stack:
        given, out, errors = (stack.enter_context(TemporaryFile()) for _ in range(3))
        given.write(stdin.encode())
        given.seek(0)
        standard = [each.fileno() for each in (given, out, errors)]
        status = command(url, arguments, standard, **settings).wait(RUN_SECONDS)
        printed = []
        for file in (out, errors):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), status, *printed)


def command(
    url: str, arguments: Sequence[str], standard: Sequence[int], **settings: str
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start one command.

    Args:
        url: its database.
        arguments: its command line.
        standard: its standard input, output and error output, which stay open here.
        settings: of its environment.
    """
    variables = environment(url, **settings)
    if Process.forker is not None and all(map(is_setting, settings)):
        return Process.forker.start("proxyd", arguments, variables, standard, leads=False)
    given, out, errors = standard
    return subprocess.Popen(
        [sys.executable, "-m", "proxyd", *arguments],
        cwd=ROOT,
        env=variables,
        stdin=given,
        stdout=out,
        stderr=errors,
    )


def assert_audit(url: str) -> None:
    """Check, as the command does, that the ledger agrees with everything."""
    agrees, report = run_aside(bookkeeping.audit(load(None, environment(url))))
    assert agrees, report


class Api:
    """The API of a daemon that runs, for a client without an event loop.

    Args:
        api: where it is.
        proxy_port: where its proxy listens.
    """

    def __init__(self, api: str, proxy_port: int = 0) -> None:
        self.api = api
        self.proxy_port = proxy_port

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Ask the API."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.api + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def log_in(self, email: str, password: str) -> str:
        """Return a session token."""
        status, body = self.call("POST", "/auth/login", {"email": email, "password": password})
        assert status == 200, body
        return str(body["token"])

    def buy(self, token: str, gb: float = 1) -> dict[str, Any]:
        """Buy a session."""
        status, body = self.call("POST", "/api/bandwidth/create", {"gb": gb}, token)
        assert status == 200, body
        return dict(body)

    def used(self, token: str, session_id: str) -> int:
        """Return the bytes that a session has used."""
        _, body = self.call("GET", "/api/bandwidth/sessions?status=all", token=token)
        return next(each["bytes_used"] for each in body["sessions"] if each["id"] == session_id)


class Process(Api):
    """`proxyd serve`, and its output.

    While `forking` it is forked from a process that has imported all of it, unless a variable
    concerns more than the daemon.

    Args:
        url: its database.
        arguments: more for its command line.
        settings: of its environment.
    """

    program = "proxyd"
    forker: Forker | None = None

    def __init__(self, url: str, *arguments: str, **settings: str) -> None:
        super().__init__("")
        self.url = url
        self.lines: list[str] = []
        self.number = int(settings.get(PROCESSES, "1"))
        arguments = ("serve", *arguments)
        variables = environment(url, **settings)
        leads = self.number > 1  # a session, as a shell has it, so that Ctrl-C can be tried
        self.process: ForkedProcess | subprocess.Popen[str]
        if self.forker is not None and all(map(is_setting, settings)):
            self.process = fork(self.forker, self.program, arguments, variables, leads=leads)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.program, *arguments],
                cwd=ROOT,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=leads,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> "Process":
        """Wait until the daemon prints that it serves."""
        until_true(lambda: self._found() or self.process.poll() is not None, "ready")
        assert self._found(), self.output
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def wait(self) -> int:
        """Wait for the daemon's end and its last printed line; return the exit status."""
        status = self.process.wait(timeout=60)
        self._reader.join()
        return status

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def node_id(self) -> str:
        """Its node identifier among other daemons."""
        return NODE.findall(self.output)[-1]

    def pid_of(self, index: int) -> int | None:
        """Return the process id of one of its processes; None while it does not run."""
        with suppress(psutil.NoSuchProcess):
            return {each.name(): each.pid for each in self.children()}.get(f"proxyd-{index}")
        return None

    def kill(self, index: int) -> None:
        """Kill one of its processes."""
        pid = self.pid_of(index)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def wait_renewed(self, index: int, earlier: int) -> None:
        """Wait until a killed process has a successor that serves."""
        ready = re.compile(rf"process {index} \(pid (?!{earlier}\))\d+\) is ready; ")
        until_true(lambda: self.pid_of(index) not in (None, earlier), "a successor")
        lost = f"process {index} (pid {earlier})"
        until_true(lambda: ready.search(self.output.rpartition(lost)[2]), "the successor serves")

    def children(self) -> list[psutil.Process]:
        """Return the processes that the daemon starts and watches; none for a single process."""
        return psutil.Process(self.process.pid).children()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def _found(self) -> bool:
        found = READY.search(self.output)
        if found:
            self.api, self.proxy_port = found["api"], int(found["port"])
        return found is not None and (self.number == 1 or ALL_READY.search(self.output) is not None)


class Fresh(Process):
    """The same, never forked: for tests that look at a process from outside."""

    forker = None


class Member(Process):
    """`proxyd serve` as one of several on its database, on either engine."""

    program = "tests.support.daemons.member"


@contextmanager
def forking() -> Iterator[None]:
    """Fork daemons until the tests are over. Benchmarks start each daemon as a new process."""
    forker = Process.forker = Forker()
    try:
        yield
    finally:
        Process.forker = None
        forker.close()


@contextmanager
def serving(url: str, *arguments: str, **settings: str) -> Iterator[Process]:
    """Run a daemon until the test is over."""
    with running(Process(url, *arguments, **settings)) as process:
        yield process.wait_ready()


@contextmanager
def running(process: Process) -> Iterator[Process]:
    """Kill a daemon when the test is over. Print its output if the test fails."""
    try:
        yield process
    except BaseException:
        print(process.output)  # noqa: T201 - pytest keeps it for the report
        raise
    finally:
        process.stop(signal.SIGKILL)


def proxied(
    daemon: Api, proxy: dict[str, Any], port: int, *, receive_buffer: int = 0
) -> socket.socket:
    """Return a socket that a bought session connects to a port of this machine."""
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)] if receive_buffer else []
    return socks.create_connection(
        ("127.0.0.1", port),
        proxy_type=socks.SOCKS5,
        proxy_addr="127.0.0.1",
        proxy_port=daemon.proxy_port,
        proxy_username=proxy["username"],
        proxy_password=proxy["password"],
        socket_options=small,
    )


def is_refused(error: OSError) -> bool:
    """Return whether `proxied` failed because the credentials are no longer accepted."""
    return isinstance(getattr(error, "socket_err", None), socks.SOCKS5AuthError)


def begin(daemon: Api, proxy: dict[str, Any], port: int) -> socket.socket:
    """Begin a download from `threads.web` that is too large for the buffers on its way."""
    connection = proxied(daemon, proxy, port)
    path = f"/bytes/{DOWNLOAD_BYTES}"
    connection.sendall(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    assert connection.recv(1) == b"H"
    return connection


def bytes_used(url: str, session_id: str) -> int:
    """Return the bytes used of a session, from the database itself."""

    async def look() -> int:
        store = await open_store(url, pool_size=1)
        try:
            row = await store.read(bandwidth.find, session_id)
            return row.bytes_used if row is not None else 0
        finally:
            await store.close()

    return run_aside(look())


def funded(
    url: str, usd: str = "100", name: str = "buyer", *, credit: str = "0"
) -> tuple[str, str]:
    """Open an account with money, and return its address and password.

    The command's own code does it, in this process: an interpreter for each would cost a quarter of
    a second. Of the command itself there are tests (`tests/proxyd/cli`).
    """
    if url.startswith(SQLITE):
        sqlite.make(Path(url.removeprefix(SQLITE)))
    email, password = f"{name}@example.com", "long enough"
    amounts = {Currency.USD: usd, Currency.CREDIT: credit}
    work = bookkeeping.create_user(
        load(None, environment(url)),
        email=email,
        username=name,
        password=password,
        amounts={each: int(Decimal(amount) * MICRO) for each, amount in amounts.items()},
    )
    run_aside(work)
    return email, password
