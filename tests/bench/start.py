"""How long proxyd takes to start: each command, and the daemon until /readyz, on each engine.

All settings are the defaults, so that nothing is cheaper than where it runs; the databases are
there. The commands and daemons take turns. START_ROUNDS=15 says how often.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from support.base.ports import free_port
from support.database import postgres

from bench import report
from bench.report import Bound, Part, progress
from bench.servers import PATIENCE_SECONDS, ROOT
from bench.startup import wait_ready

ROUNDS = 15
COMMANDS = (("--version",), ("--help",), ("config", "check"), ("ledger", "audit"))
COMMAND_MAX_SECONDS = 0.2
START_MAX_SECONDS = 0.25
SERVE = "serve, until /readyz answers 200"
PROCESSOR = "serve, processor time until then"


def main() -> None:
    """Measure, print, and write it into the documentation."""
    rounds = int(os.environ.get("START_ROUNDS") or ROUNDS)
    with tempfile.TemporaryDirectory() as name, postgres.server() as server:
        environments = {
            "SQLite": environment(f"sqlite:///{name}/proxyd.db", name),
            "PostgreSQL": environment(server, name),
        }
        part = measured(environments, rounds, Path(name))
    print(part.markdown(), flush=True)
    report.rewrite("bench-start", part.markdown())


def environment(url: str, folder: str) -> dict[str, str]:
    """Return the environment of the processes on one database."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")}
    return {
        **ours,
        "PROXYD_STORAGE__URL": url,
        "PROXYD_AUTH__SIGNING_KEY_FILE": f"{folder}/signing.key",
        "PROXYD_PROXY__PORT": "0",
    }


def measured(environments: dict[str, dict[str, str]], rounds: int, folder: Path) -> Part:
    """Start everything in turn; the first round makes the databases, and does not count."""
    part = Part("start")
    for number in range(rounds + 1):
        progress(f"start: round {number} of {rounds}")
        for engine, variables in environments.items():
            seconds, processor_seconds = serving(variables, folder)
            taken = {SERVE: seconds, PROCESSOR: processor_seconds}
            for command in COMMANDS:
                taken[" ".join(command)] = seconds_of(command, variables)
            for measure, value in taken.items() if number else ():
                part.samples.add(f"{measure}, s", engine, value)
    limits = {SERVE: START_MAX_SECONDS}
    limits |= {" ".join(command): COMMAND_MAX_SECONDS for command in COMMANDS}
    for measure, limit in limits.items():
        for engine in environments:
            figure = part.samples.median(f"{measure}, s", engine)
            part.bounds.append(Bound(f"{engine}: {measure}, s", figure, limit, at_most=True))
    part.notes.append(f"Medians of {rounds} rounds, on existing databases without accounts.")
    return part


def seconds_of(command: tuple[str, ...], variables: dict[str, str]) -> float:
    """Run a command to its good end. Return its duration."""
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "proxyd", *command],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - start


def serving(variables: dict[str, str], folder: Path) -> tuple[float, float]:
    """Start a daemon and stop it. Return its seconds until it was ready, and its processor time."""
    port = free_port()
    with (folder / "log").open("w") as log:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "proxyd", "serve"],
            cwd=ROOT,
            env={**variables, "PROXYD_API__PORT": str(port)},
            stderr=log,
        )
        try:
            wait_ready(port)
            return time.monotonic() - start, sum(psutil.Process(process.pid).cpu_times()[:2])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
