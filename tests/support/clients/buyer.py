"""A buyer with a session on a running daemon, and the programs that the buyer fetches with."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.targets.threads import WebTarget

SECONDS_MAX = 60


@dataclass
class Buyer:
    """A buyer with a session on a running daemon."""

    daemon: Process
    token: str
    session_id: str
    username: str
    password: str

    @property
    def proxy(self) -> str:
        return f"{self.username}:{self.password}@{self.address}"

    @property
    def wrong_proxy(self) -> str:
        return f"{self.username}:wrong@{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.daemon.proxy_port}"

    def assert_counted(self, target: WebTarget) -> None:
        """Compare the bytes used with the target's count."""
        until_true(
            lambda: self.used == target.received + target.sent,
            lambda: f"{self.used} used == {target.received} received + {target.sent} sent",
        )

    @property
    def used(self) -> int:
        return self.daemon.used(self.token, self.session_id)


@contextmanager
def selling(folder: Path, **settings: str) -> Iterator[Callable[[], Buyer]]:
    """Run a daemon, and yield a function that sells a session each time; its ledger must agree."""
    url = f"sqlite:///{folder}/proxyd.db"
    email, password = process.funded(url)
    with process.serving(url, **settings) as daemon:
        token = daemon.log_in(email, password)

        def sell() -> Buyer:
            bought = daemon.buy(token)
            proxy = bought["proxy"]
            return Buyer(daemon, token, bought["session_id"], proxy["username"], proxy["password"])

        yield sell
        process.assert_audit(url)


def program(name: str) -> str:
    """Return where a program is; without it there is nothing to test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make clients")
    return found


def client_environment(**variables: str) -> dict[str, str]:
    """Return an environment that names no other proxy."""
    inherited = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    return {**inherited, **variables}


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a client to its end."""
    return subprocess.run(
        [program(name), *arguments],
        env=client_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def output_of(name: str, *arguments: str, **variables: str) -> bytes:
    """Run a client that succeeds, and return its output."""
    done = run(name, *arguments, **variables)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
