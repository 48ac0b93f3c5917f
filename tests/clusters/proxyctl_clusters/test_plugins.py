"""proxyctl_clusters.plugins: the executors as the agent gets them, where there is no cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxyctl.protocol.jobspec.payload import Payload
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base.record import Lend, Sandbox
from proxyctl.worker.executors.base.base import Executor, Finding, TaskError

SCRIPT, IMAGE = Payload(command=("true",)), Payload(image="debian")


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def sandbox_of(folder: Path, **settings: Any) -> Sandbox:
    """Return a Kubernetes whose API server is a closed port."""
    config = folder / "kube.json"
    server = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": False}
    stored = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": server}],
        "users": [{"name": "it", "user": {"token": "t"}}],
    }
    config.write_text(json.dumps(stored))
    config.chmod(0o600)
    named = {"kube_config": str(config), "kube_claim": f"proxyd:{folder}", "kube_image": "python"}
    return Sandbox(executor="kubernetes", settings={**named, **settings})


def finding(sandbox: Sandbox, folder: Path) -> Finding:
    """Return the first thing that an executor misses."""
    executors, findings = sandboxes.usable(sandbox, Lend(jobs=("docker",)), folder)
    assert executors == {}
    [(name, [first, *_])] = findings.items()
    assert name == sandbox.executor
    return first


def test_a_slurm_without_its_commands_is_not_used(tmp_path: Path) -> None:
    missing = finding(Sandbox(executor="slurm"), tmp_path)
    assert missing.id == "slurm"
    assert missing.actual.startswith("not installed: ")
    with pytest.raises(TaskError, match="Slurm: "):
        sandboxes.capacity(Sandbox(executor="slurm"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "the API server 127.0.0.1:1 does not answer"),
        ({"kube_image": ""}, "no image for scripts is named"),
        ({"kube_claim": ""}, "no claim is named"),
        ({"kube_config": "/nowhere/kube.json"}, "/nowhere/kube.json is not there"),
    ],
)
def test_the_settings_of_the_record_reach_kubernetes(
    settings: dict[str, str], words: str, tmp_path: Path
) -> None:
    sandbox = sandbox_of(tmp_path, **settings)
    assert words in finding(sandbox, tmp_path).actual
    with pytest.raises(TaskError, match=words):
        sandboxes.capacity(sandbox, tmp_path)


def test_kubernetes_runs_images_and_slurm_does_not(tmp_path: Path) -> None:
    executor: Any = object()
    kubernetes: dict[str, Executor] = {"kubernetes": executor}
    slurm: dict[str, Executor] = {"slurm": executor}
    assert sandboxes.executor_for(kubernetes, SCRIPT) is executor
    assert sandboxes.executor_for(kubernetes, IMAGE) is executor
    assert sandboxes.executor_for(slurm, SCRIPT) is executor
    with pytest.raises(TaskError, match="the image debian"):
        sandboxes.executor_for(slurm, IMAGE)
