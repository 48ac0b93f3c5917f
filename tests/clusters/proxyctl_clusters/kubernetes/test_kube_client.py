"""proxyctl_clusters.kubernetes.kube_client: the program that a supervisor starts, with no cluster.

test_kubernetes.py has its tests beside a Kubernetes.
"""

import subprocess
from pathlib import Path

from proxyctl import files
from proxyctl.worker.base.programs import python
from proxyctl_clusters.kubernetes.kube_objects import EXCHANGE
from proxyctl_clusters.kubernetes.kubernetes import _CLIENT, POD


def test_the_client_starts_and_reports_a_missing_cluster(tmp_path: Path) -> None:
    exchange = tmp_path / EXCHANGE
    exchange.mkdir()
    files.write(exchange / POD, {"config": "", "namespace": "n", "name": "p", "uid": "u"})
    command = [*python(_CLIENT), str(exchange)]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("no kubeconfig is named, and this is no pod of a cluster\n")
