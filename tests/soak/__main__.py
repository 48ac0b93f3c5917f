"""Runs rounds of load, and measures the daemon at rest after each: `make soak`.

After the first round, which warms everything up, memory, descriptors and tasks must stay.
"""

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import ROOT, Process

from proxyd.loop.pipes import IDLE_MAX_PIPES
from soak.load import DEVICES, Load

ROUNDS = 6
REST_SECONDS = 10.0
MEMORY_SPARE_BYTES = 12_000_000
DESCRIPTORS_SPARE = 4 * IDLE_MAX_PIPES  # they are kept for the next transfer
TASKS_SPARE = 2


class Observed(Process):
    """A daemon that tells how many tasks it has."""

    program = "soak.observed"

    def tasks(self) -> int:
        """Ask for the number of tasks."""
        before = len(self.lines)
        self.process.send_signal(signal.SIGUSR1)
        told: list[int] = []

        def is_told() -> bool:
            told[:] = [int(each) for each in re.findall(r"tasks: (\d+)", self._since(before))]
            return bool(told)

        until_true(is_told, "the number of tasks")
        return told[-1]

    def _since(self, line: int) -> str:
        return "".join(self.lines[line:])


class Held(NamedTuple):
    """Resources of a daemon."""

    rss: int
    descriptors: int
    tasks: int

    def exceeds(self, base: "Held") -> bool:
        """Say whether it is more than it was, and more than chance explains."""
        return (
            self.rss > base.rss + MEMORY_SPARE_BYTES
            or self.descriptors > base.descriptors + DESCRIPTORS_SPARE
            or self.tasks > base.tasks + TASKS_SPARE
        )


def held(daemon: Observed) -> Held:
    """Measure a daemon."""
    running = psutil.Process(daemon.process.pid)
    return Held(running.memory_info().rss, running.num_fds(), daemon.tasks())


def at_rest(daemon: Observed) -> Held:
    """Measure a daemon once it has released its last work."""
    deadline = time.monotonic() + REST_SECONDS
    least = held(daemon)
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = held(daemon)
        least = Held(now.rss, min(least.descriptors, now.descriptors), min(least.tasks, now.tasks))
    return least


def soak(url: str, seconds: float) -> bool:
    """Run every round. Return whether everything stayed flat and every cent agrees."""
    email, password = process.funded(url, "900000", credit="900000")
    daemon = Observed(url, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    total: Counter[str] = Counter()
    try:
        daemon.wait_ready()
        token = daemon.log_in(email, password)
        workers = [
            daemon.call("POST", "/api/worker/token/create", {"name": f"rig{number}"}, token)[1]
            for number in range(DEVICES)
        ]
        measured = []
        for number in range(ROUNDS):
            load = Load(daemon, token, [each["token"] for each in workers])
            asyncio.run(load.run(seconds / ROUNDS))
            total += load.done
            measured.append(at_rest(daemon))
            tell(f"round {number + 1}", measured[-1])
        is_flat = not any(each.exceeds(measured[0]) for each in measured[1:])
        print(", ".join(f"{kind} {number}" for kind, number in sorted(total.items())))
        status = daemon.stop(signal.SIGTERM)
    finally:
        daemon.stop(signal.SIGKILL)
    audit = process.run(url, "ledger", "audit")
    print(audit.stdout.rstrip())
    for line in re.findall(r".* (?:ERROR|CRITICAL) .*", daemon.output):
        print(line)
    return is_flat and status == 0 and audit.returncode == 0


def tell(when: str, what: Held) -> None:
    """Print a measurement."""
    print(
        f"{when}: {what.rss / 1e6:.1f} MB, {what.descriptors} descriptors, {what.tasks} tasks",
        flush=True,
    )


def main() -> int:
    """Soak a daemon on a database of its own; 0 when all is well."""
    seconds = float(os.environ.get("SOAK_SECONDS", "300"))
    with tempfile.TemporaryDirectory(prefix="proxyd-soak-") as folder:
        is_well = soak(f"sqlite:///{Path(folder) / 'proxyd.db'}", seconds)
    print("flat" if is_well else "NOT flat, or not in order: see above")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
