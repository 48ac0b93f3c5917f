"""How much more several processes move than one: `make bench-scaling`, as root.

The clients and the target also need cores, and one process of proxyd moves more bytes than one core
of them sends. So where there are not two cores for each process, a process may use no more than
`SHARE` of a core (the kernel's cgroups see to it). Then proxyd is the limit, as it is on a large
machine, and the costs between its processes show as they would there. ROUNDS=5 PROCESSES=2,8.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from support.base.waiting import until_true

from bench import bought, bulk, report, streams
from bench.connections import echo
from bench.native import compiled
from bench.report import Bound, Part, progress
from bench.servers import Server, started

ROUNDS = 5
PROCESSES = (2, 8)
SHARE = 0.08  # of a core: eight processes leave more than a core of two to the others
PERIOD_MICROSECONDS = 20_000  # short, so that no connection waits long for the next one
AT_ONCE, SECONDS, STREAMS = 64, 3.0, 64
RATE, SPEED = "connections/s", f"{STREAMS} streams down, GB/s"
WANTED = {2: 1.6, 8: 6.0}
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def main() -> None:
    """Measure, print, and write it into the documentation."""
    rounds = int(os.environ.get("ROUNDS") or ROUNDS)
    named = os.environ.get("PROCESSES", "")
    counts = [1, *(int(count) for count in named.split(",") if count)] if named else [1, *PROCESSES]
    is_limited = (os.cpu_count() or 1) < 2 * max(counts)
    if is_limited and os.geteuid() != 0:
        sys.exit("make bench-scaling limits processes by control groups here, and must be root")
    part = measured(counts, rounds, is_limited=is_limited)
    print(part.markdown(), flush=True)
    report.rewrite("bench-scaling", part.markdown())


def measured(counts: list[int], rounds: int, *, is_limited: bool) -> Part:
    """Measure proxyd in each number of processes, in turn."""
    part = Part("scaling")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program, port = compiled("connections", folder), stack.enter_context(echo(folder))
        end = stack.enter_context(streams.target())
        servers = []
        for count in counts:
            own = folder / str(count)
            own.mkdir()
            kind = bought.proxyd(own, name_of(count), {bought.SETTING: str(count)}).kind
            server = stack.enter_context(started(kind))
            servers.append(server)
            workers = serving(server, count)
            if is_limited:
                stack.enter_context(limited(workers))
        for number in range(rounds):
            progress(f"scaling: round {number + 1} of {rounds}")
            for server in servers:
                part.samples.add(RATE, server.name, connections_per_second(program, server, port))
                speed, _ = bulk.transfer(server, end, STREAMS, up=False)
                part.samples.add(SPEED, server.name, speed)
    for count in counts[1:]:
        for measure in (RATE, SPEED):
            times = part.samples.ratio(measure, name_of(count), name_of(1))
            promise = f"{measure} of {count} processes, of one's"
            part.bounds.append(Bound(promise, times, WANTED.get(count, 0.75 * count)))
    part.notes.append(f"Medians of {rounds} rounds.")
    if is_limited:
        part.notes.append(f"Each process could use {SHARE:.0%} of a core.")
    return part


def name_of(count: int) -> str:
    """Return the name of proxyd in `count` processes."""
    return bought.PROXYD if count == 1 else bought.several(count)


def serving(server: Server, count: int) -> list[int]:
    """Return the processes that serve, once all of them are there."""
    assert server.process is not None
    if count == 1:
        return [server.process.pid]
    supervisor = psutil.Process(server.process.pid)
    until_true(lambda: len(supervisor.children()) == count, "all processes are started")
    return [child.pid for child in supervisor.children()]


def connections_per_second(program: str, server: Server, port: int) -> float:
    """Return how many connections are made, used and closed in a second."""
    command = [program, server.host, str(server.port), str(port), str(SECONDS), str(AT_ONCE)]
    done = subprocess.run(
        [*command, server.user, server.password], capture_output=True, text=True, check=True
    )
    served, _, seconds, *_ = map(float, done.stdout.split())
    return served / seconds


@contextmanager
def limited(pids: list[int]) -> Iterator[None]:
    """Have each process use no more than its share of a core, until it ends."""
    is_unified = (CONTROL_GROUPS / "cgroup.controllers").exists()
    root = CONTROL_GROUPS if is_unified else CONTROL_GROUPS / "cpu"
    quota = int(SHARE * PERIOD_MICROSECONDS)
    groups: list[Path] = []
    try:
        for pid in pids:
            group = root / f"proxyd-scaling-{pid}"
            group.mkdir()
            groups.append(group)
            if is_unified:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid, group in zip(pids, groups, strict=False):
            if psutil.pid_exists(pid):
                (root / "cgroup.procs").write_text(str(pid))
            group.rmdir()


if __name__ == "__main__":
    main()
