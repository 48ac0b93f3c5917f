"""proxyd as an operator runs it and a buyer uses it: its own database, money, a bought session.

It is measured in each way that it can run in: as it was installed, interpreted where that is
compiled, and in several processes.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.base.ports import free_port
from support.daemons import process

from bench.servers import Kind

SESSION_GB = 10_000
PROXYD, INTERPRETED = "proxyd", "proxyd interpreted"
COMMAND = (sys.executable, "-m", "proxyd")
SWITCH_OFF = {"PROXYD_INTERPRETED": "1"}
SETTING = "PROXYD_PROXY__PROCESSES"
PROCESSES_MAX = 8


@dataclass(frozen=True)
class Bought:
    """How to run proxyd so that it serves a bought session, and how to ask its API."""

    kind: Kind
    api_port: int
    token: str


def ways() -> dict[str, dict[str, str]]:
    """Return the ways in which proxyd can run here: the name of each, and its environment.

    The first way is the installed one; the promises are about that one.
    """
    ways = {PROXYD: {}}
    if is_compiled():
        ways[INTERPRETED] = SWITCH_OFF
    count = str(min(os.cpu_count() or 1, PROCESSES_MAX))
    if count != "1" and _says(("config", "check"), {SETTING: count}) is not None:
        ways[several(int(count))] = {SETTING: count}
    return ways


def several(count: int) -> str:
    """Return the name of proxyd in `count` processes."""
    return f"proxyd, {count} processes"


def is_ours(name: str) -> bool:
    """Say whether a server is proxyd, in whichever way."""
    return name == PROXYD or name.startswith((INTERPRETED, f"{PROXYD},"))


def is_compiled(environment: dict[str, str] | None = None) -> bool:
    """Say whether proxyd runs compiled, according to its `--version`."""
    words = re.findall(r"\w+", _says(("--version",), environment or {}) or "")
    return "compiled" in words and "interpreted" not in words


def _says(arguments: tuple[str, ...], environment: dict[str, str]) -> str | None:
    """Return the output of a command of proxyd; None if it fails."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")}
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=process.ROOT,
        env={**ours, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


def all_ways(folder: Path) -> list[Bought]:
    """Set proxyd up in each way that it can run in."""
    bought = []
    for number, (name, settings) in enumerate(ways().items()):
        own = folder / f"proxyd{number}"
        own.mkdir()
        bought.append(proxyd(own, name, settings))
    return bought


def proxyd(folder: Path, name: str = PROXYD, settings: dict[str, str] | None = None) -> Bought:
    """Set proxyd up in a folder; the session is the largest there is, bought through the API.

    Metering, ledger and durable commits are on, as always; two limits on connections are raised.
    """
    url = f"sqlite:///{folder}/proxyd.db"
    email, password = process.funded(url, usd="1000000")
    with process.serving(url) as daemon:
        token = daemon.log_in(email, password)
        session = daemon.buy(token, gb=SESSION_GB)["proxy"]
        assert daemon.stop() == 0, daemon.output
    api_port = free_port()
    environment = process.environment(
        url,
        PROXYD_API__PORT=str(api_port),
        PROXYD_PROXY__HOST="{host}",
        PROXYD_PROXY__PORT="{port}",
        PROXYD_EGRESS__ALLOW='["127.0.0.0/8", "10.0.0.0/8"]',
        PROXYD_LIMITS__CONNECTIONS_PER_SESSION="100000",
        PROXYD_LIMITS__CONNECTIONS_PER_ADDRESS="100000",
    )
    ours = {each: text for each, text in environment.items() if "PROXYD" in each}
    kind = Kind(
        name,
        (*COMMAND, "serve"),
        environment={"PROXYD_INTERPRETED": "", **ours, **(settings or {})},
        user=session["username"],
        password=session["password"],
    )
    return Bought(kind, api_port, token)
