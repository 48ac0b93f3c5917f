"""proxyctl_clusters.slurm.slurm_client: the program that a supervisor starts, without a Slurm.

test_slurm.py has its tests beside a Slurm.
"""

import subprocess
from pathlib import Path

from proxyctl.worker.base.programs import python
from proxyctl_clusters.slurm.slurm import _CLIENT, EXCHANGE


def test_the_client_starts_and_fails_where_nothing_was_launched(tmp_path: Path) -> None:
    command = [*python(_CLIENT), str(tmp_path / EXCHANGE), "proxyd.none"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
