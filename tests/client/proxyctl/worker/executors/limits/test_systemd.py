"""proxyctl.worker.executors.limits.systemd: its command, and its refusal where there is no manager.

Under a real manager it proves itself: `check` starts a scope and reads the kernel's files.
"""

import shutil
import subprocess

import pytest

from proxyctl.worker.executors.base.base import Bounds, TaskError
from proxyctl.worker.executors.limits.systemd import SystemdScopes

BOUNDS = Bounds(cores=1.5, memory_bytes=64 << 20, disk_bytes=1 << 20, processes=20, seconds=60)


def has_manager() -> bool:
    """Say whether this user has a manager that runs."""
    if shutil.which("systemctl") is None:
        return False
    asked = ("systemctl", "--user", "show", "--property=Version")
    return subprocess.run(asked, capture_output=True, check=False, timeout=20).returncode == 0


def test_without_a_manager_nothing_is_admitted() -> None:
    """The refusal contains the message of systemd."""
    if has_manager():
        pytest.skip("this user has a manager of its own")
    limits = SystemdScopes({})
    finding = limits.check()[0]
    assert not finding.is_met
    assert "linger" in finding.remedy
    with pytest.raises(TaskError, match="systemd") as refusal:
        limits.admit("job-1", BOUNDS)
    assert refusal.value.kind == "refused"
    assert limits.attempts() == set()
    assert limits.processes("job-1") == []
    limits.kill("job-1")
    limits.clean("job-1")


def test_a_scope_has_every_bound_and_the_program_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it in the command, so that nothing runs before it is bounded."""
    limits = SystemdScopes({"XDG_RUNTIME_DIR": "/run/user/1", "PROXYD_WORKER_TOKEN": "secret"})
    monkeypatch.setattr(limits, "_try", lambda: "")
    admission = limits.admit("job-1", BOUNDS)
    assert admission.prefix[:4] == ("/usr/bin/systemd-run", "--user", "--scope", "--quiet")
    assert "--unit=proxyctl-job-agent.job-1.scope" in admission.prefix
    for each in ("MemoryMax=67108864", "MemorySwapMax=0", "TasksMax=20", "CPUQuota=150%"):
        assert f"--property={each}" in admission.prefix
    assert admission.prefix[-2:] == ("/usr/bin/env", "-i")
    assert admission.env == (("XDG_RUNTIME_DIR", "/run/user/1"),)
    with pytest.raises(TaskError):
        limits.admit("../job", BOUNDS)
