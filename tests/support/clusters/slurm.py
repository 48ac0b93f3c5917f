"""A real Slurm on this machine, with one node and everything in a folder of its own."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from proxyctl.worker.executors.limits.cgroup1 import find_parents
from support.base.ports import closed_port
from support.base.waiting import until_true

MEMORY_MB = 4000
CONFIG = """
ClusterName=proxyd
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
MpiDefault=none
FirstJobId={first}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CGROUPS = """
CgroupPlugin={plugin}
CgroupAutomount=no
IgnoreSystemd=yes
ConstrainCores=yes
ConstrainRAMSpace={constrains}
ConstrainSwapSpace={constrains}
AllowedSwapSpace=0
"""
_DAEMONS = ("munged", "slurmctld", "slurmd")


def require() -> None:
    """Skip unless `make slurm` runs this, which installs missing programs, or fails."""
    if os.environ.get("REQUIRE_SLURM") != "1":
        pytest.skip("`make slurm` starts a Slurm for this")
    missing = [each for each in (*_DAEMONS, "sbatch") if shutil.which(each) is None]
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.fail("only root can start a Slurm")


class Cluster:
    """A controller and a node, which can be ended and started again.

    Args:
        folder: for everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        with closed_port() as controller_port, closed_port() as node_port:
            pass  # no other program is given them so soon
        fields = {
            "host": self.host,
            "folder": folder,
            "controller_port": controller_port,
            "node_port": node_port,
            # Of another cluster on this machine no job has such a number, nor such a group.
            "first": controller_port * 1000,
            "cores": os.cpu_count(),
            "memory": MEMORY_MB,
        }
        (folder / "slurm.conf").write_text(CONFIG.format(**fields))
        self.constrain(constrains=True)

    def constrain(self, *, constrains: bool) -> None:
        """Set whether the node enforces the memory limits of jobs, from its next start."""
        plugin = "cgroup/v1" if find_parents() else "cgroup/v2"
        words = {"plugin": plugin, "constrains": "yes" if constrains else "no"}
        (self.folder / "cgroup.conf").write_text(CGROUPS.format(**words))

    def start(self, name: str) -> None:
        """Start a daemon."""
        config = ("-D", "-f", str(self.folder / "slurm.conf"))
        options = {
            "munged": (
                "--foreground",
                f"--key-file={self.folder}/munge.key",
                f"--socket={self.folder}/munge.socket",
                f"--pid-file={self.folder}/munge.pid",
                f"--log-file={self.folder}/munge.log",
                f"--seed-file={self.folder}/munge.seed",
            )
        }.get(name, config)
        path = shutil.which(name)
        assert path is not None
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [path, *options], env={**os.environ, **self.environment}, stdout=log, stderr=log
            )

    def stop(self, name: str) -> None:
        """End a daemon."""
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            daemon.terminate()
            daemon.wait(30)

    def call(self, *command: str) -> str:
        """Run a command of Slurm."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout if done.returncode == 0 else f"! {done.stderr}"

    def jobs(self) -> str:
        """Return the jobs that are not over."""
        return self.call("squeue", "--noheader", "--format=%j %T").strip()

    def until_ready(self) -> None:
        """Wait until the node takes jobs."""
        until_true(
            lambda: self.call("sinfo", "--noheader", "--format=%T").strip() in ("idle", "mixed"),
            lambda: (self.folder / "slurmctld.log").read_text() + self.call("sinfo"),
        )


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start one, and end it with all its jobs."""
    made = Cluster(folder)
    with ExitStack() as stack:
        for name in _DAEMONS:
            stack.callback(made.stop, name)
            made.start(name)
            if name == "munged":
                until_true((folder / "munge.socket").exists, "munge listens")
        made.until_ready()
        stack.callback(made.call, "scancel", "--full", "--signal=KILL", "--user=root")
        yield made
