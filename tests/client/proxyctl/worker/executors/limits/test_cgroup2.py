"""proxyctl.worker.executors.limits.cgroup2: its writes and reads, in a folder of plain files.

That the kernel holds it is shown by `make vm`, in a machine that has the controllers there.
"""

from pathlib import Path

import pytest

from proxyctl.worker.executors.base.base import Bounds, TaskError
from proxyctl.worker.executors.limits.base import GROUP
from proxyctl.worker.executors.limits.cgroup2 import Cgroup2

BOUNDS = Bounds(cores=0.5, memory_bytes=64 << 20, disk_bytes=1 << 20, processes=20, seconds=60)
FILES = (
    "memory.max",
    "memory.swap.max",
    "pids.max",
    "cpu.max",
    "cpu.weight",
    "cgroup.procs",
    "cgroup.kill",
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder as it is delegated, with the agent in it."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").touch()
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.procs").write_text("17\n")
    (tmp_path / "proxyctl-agent").mkdir()
    (tmp_path / "proxyctl-agent" / "cgroup.procs").touch()
    (tmp_path / GROUP).mkdir()
    (tmp_path / GROUP / "cgroup.subtree_control").touch()
    return tmp_path


def test_the_bounds_are_written_as_the_kernel_reads_them(top: Path) -> None:
    """The agent makes room for groups of jobs, and each bound is in its file."""
    group = top / GROUP / "agent.job-1"
    group.mkdir()
    for name in FILES:
        (group / name).touch()
    limits = Cgroup2(top)
    assert limits.check()[0].is_met
    admission = limits.admit("job-1", BOUNDS)
    assert admission.cgroups == (str(group / "cgroup.procs"),)
    assert {name: (group / name).read_text() for name in FILES[:5]} == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "pids.max": "20",
        "cpu.max": "50000 100000",
        "cpu.weight": "10",
    }
    assert (top / "proxyctl-agent" / "cgroup.procs").read_text() == "17"
    for folder in (top, top / GROUP):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    limits.kill("job-1")
    assert (group / "cgroup.kill").read_text() == "1"
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (group / "memory.peak").write_text("1024\n")
    ending = limits.ended("job-1")
    assert (ending.is_out_of_memory, ending.cpu_seconds) == (True, 1.5)
    assert ending.max_memory_bytes == 1024
    assert limits.attempts() == {"job-1"}


@pytest.mark.parametrize("controllers", ["cpu io", "hugetlb", ""])
def test_a_missing_controller_is_a_refusal(top: Path, controllers: str) -> None:
    """A machine with both versions may have none of them here."""
    (top / "cgroup.controllers").write_text(controllers)
    limits = Cgroup2(top)
    assert "memory" in limits.check()[0].actual
    with pytest.raises(TaskError) as refusal:
        limits.admit("job-1", BOUNDS)
    assert refusal.value.kind == "refused"
