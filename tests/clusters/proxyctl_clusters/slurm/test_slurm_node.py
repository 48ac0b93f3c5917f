"""proxyctl_clusters.slurm.slurm_node: the script of a job of Slurm, without a Slurm.

test_slurm.py has its tests on a node.
"""

import subprocess
from pathlib import Path

from proxyctl_clusters.slurm.slurm import script_of


def test_the_script_of_a_job_starts_and_names_a_folder_that_the_node_does_not_have(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "on the other machine"
    done = subprocess.run(
        ["/bin/sh", "-c", script_of(missing)],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"{missing} is not here\n")
