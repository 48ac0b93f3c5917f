"""podman without root, where limits may not be possible: then it is refused, in words."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.daemons.process import ROOT
from support.workers import engines

PROGRAM = """
import json, sys
from pathlib import Path
from proxyctl.worker.executors.base.base import Bounds, Task, TaskError
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.podman import Podman, choose_runtime

folder = Path(sys.argv[1])
containers = Containers(Podman(choose_runtime()), folder=folder)
unmet = [each.id for each in containers.check() if not each.is_met]
bounds = Bounds(0.5, 64 << 20, 1 << 20, 32, 10)
try:
    containers.prepare(Task("a-1", folder / "a-1", "docker", ("true",), bounds, image="none"))
except TaskError as error:
    print(json.dumps({"unmet": unmet, "kind": error.kind, "message": error.message}))
"""


def test_limits_that_podman_would_ignore_are_a_refusal() -> None:
    engines.require("podman", "setpriv", "newuidmap", str(engines.PYTHON))
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("control groups v2: podman without root may have limits here")
    user = engines.ordinary_user()
    if os.geteuid() != 0 or user is None:
        pytest.skip("needs root, to be an ordinary user with ids in /etc/subuid")
    home = Path(tempfile.mkdtemp(prefix="proxyd-rootless-", dir="/var/tmp"))
    (home / "run").mkdir(mode=0o700)
    # The checkout may be where that user cannot read.
    shutil.copytree(ROOT / "client" / "proxyctl", home / "client" / "proxyctl")
    for each in (home, home / "run"):
        os.chown(each, user.pw_uid, user.pw_gid)
    try:
        said = _checked(home, user)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert said["unmet"] == ["podman-limits"]
    assert said["kind"] == "refused"
    assert "control groups v1" in said["message"]


def _checked(home: Path, user: pwd.struct_passwd) -> dict[str, Any]:
    """Return the findings of the check for an ordinary user."""
    done = subprocess.run(
        [
            *("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid)),
            *("--init-groups", engines.PYTHON, "-B", "-c", PROGRAM, home),
        ],
        env={
            "HOME": str(home),
            "USER": user.pw_name,
            "XDG_RUNTIME_DIR": str(home / "run"),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(home / "client"),
        },
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said
