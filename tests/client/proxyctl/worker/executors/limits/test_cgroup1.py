"""proxyctl.worker.executors.limits.cgroup1: `test_bwrap.py` tests jobs under it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.workers import battery

from proxyctl.worker.executors.base.base import Bounds, TaskError
from proxyctl.worker.executors.limits.cgroup1 import Cgroup1, find_parents

BOUNDS = Bounds(cores=0.5, memory_bytes=64 << 20, disk_bytes=1 << 20, processes=20, seconds=60)


@pytest.fixture
def limits() -> Iterator[Cgroup1]:
    """Limits by the control groups of this machine."""
    if not find_parents():
        pytest.skip("this machine has no control groups of the first version")
    made = Cgroup1()
    unmet = [each.actual for each in made.check() if not each.is_met]
    battery.require("; ".join(unmet))
    yield made
    made.clean("cgroup1-test")


def test_the_kernel_holds_the_requested_bounds(limits: Cgroup1) -> None:
    """Each bound is in the kernel's own file, and all groups are removed afterwards."""
    groups = [Path(each).parent for each in limits.admit("cgroup1-test", BOUNDS).cgroups]
    values = {
        name: (group / name).read_text().strip()
        for group in groups
        for name in ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us", "cpu.shares")
        if (group / name).exists()
    }
    assert values == {
        "memory.limit_in_bytes": str(64 << 20),
        "pids.max": "20",
        "cpu.cfs_quota_us": "50000",
        "cpu.shares": "102",
    }
    assert limits.attempts() >= {"cgroup1-test"}
    assert limits.processes("cgroup1-test") == []
    limits.admit("cgroup1-test", BOUNDS)  # again, after an agent was killed in between
    limits.clean("cgroup1-test")
    limits.clean("cgroup1-test")
    assert not any(group.exists() for group in groups)
    assert "cgroup1-test" not in limits.attempts()


def test_a_bound_that_the_kernel_refuses_leaves_nothing_behind(limits: Cgroup1) -> None:
    """A bound that cannot be held is a refusal."""
    absurd = Bounds(1e9, 64 << 20, 1 << 20, 20, 60)
    with pytest.raises(TaskError, match=r"cpu.cfs_quota_us"):
        limits.admit("cgroup1-test", absurd)
    assert "cgroup1-test" not in limits.attempts()


def test_foreign_folders_are_named() -> None:
    """With the command that gives them to the agent's user."""
    finding = Cgroup1({}).check()[0]
    assert not finding.is_met
    assert "chown" in finding.remedy
