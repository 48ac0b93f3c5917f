"""proxyctl_clusters.kubernetes.kube_objects: the requests to a cluster, and its
answers."""

import platform
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until_true

from proxyctl.worker.executors.base.base import Bounds, Task, TaskError
from proxyctl.worker.executors.bwrap import machine_code
from proxyctl_clusters.kubernetes import kube_objects as objects
from proxyctl_clusters.kubernetes import kube_trial
from proxyctl_clusters.kubernetes.kube_objects import End, Named, Place
from proxyctl_clusters.kubernetes.kubernetes import _GATE

BOUNDS = Bounds(1.5, 512 << 20, 1 << 30, 64, 60)
TASK = Task(
    attempt_id="0b9a-1",
    folder=Path("/shared/agent/attempts/0b9a-1"),
    job_type="training",
    command=("python3", "-c", "print('$(HOME) $$')"),
    bounds=BOUNDS,
    image="python:3.12",
    env={"HF_TOKEN": "a secret"},
)
NAMED = Named("0123456789ab", "0b9a-1", "agent/attempts/0b9a-1")
PLACE = Place("proxyd", "shared", "amd64", 1000, {"pool": "strangers"}, "gvisor")
TOLD: dict[str, Any] = {
    "user": 1000,
    "status": {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"},
    "memory": str(kube_trial.BOUNDS.memory_bytes),
    "cores": "50000 100000",
    "written": [],
    "has_token": False,
    "reached": [],
    "threads": 512,
    "log": kube_trial._SAID,
}


def pod_spec(task: Task = TASK) -> dict[str, Any]:
    spec = objects.job_of(task, NAMED, PLACE)["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@cases("part", ["initContainers", "containers"])
def test_every_container_has_every_wall(part: str) -> None:
    for each in pod_spec()[part]:
        assert each["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"] == each["resources"]["requests"]
        assert set(each["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
        assert not {"ports", "lifecycle", "stdin", "tty"} & set(each)


def test_an_image_is_asked_for_at_its_registry_once() -> None:
    """An image on a node may be the owner's own; the job runs in the image that the gate ran in."""
    [gate], [job] = pod_spec()["initContainers"], pod_spec()["containers"]
    assert (gate["image"], job["image"]) == (TASK.image, TASK.image)
    assert (gate["imagePullPolicy"], job["imagePullPolicy"]) == ("Always", "IfNotPresent")


def test_a_pod_has_no_identity_in_its_cluster_and_on_its_node() -> None:
    spec = pod_spec()
    assert not spec["automountServiceAccountToken"]
    assert not spec["enableServiceLinks"]
    assert spec["dnsPolicy"] == "None"
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers", "serviceAccountName"} & set(spec)
    kinds = {kind for each in spec["volumes"] for kind in each if kind != "name"}
    assert kinds == {"persistentVolumeClaim", "emptyDir"}
    assert spec["nodeSelector"]["pool"] == "strangers"
    assert spec["runtimeClassName"] == "gvisor"


def test_a_job_sees_only_its_own_folders_and_never_the_word() -> None:
    """The folder with the word is the gate's; a job that had it could not write there, either."""
    [job], [gate] = pod_spec()["containers"], pod_spec()["initContainers"]
    shared = {each["mountPath"]: each for each in job["volumeMounts"] if each["name"] == "folder"}
    assert set(shared) == {"/work", "/inputs"}
    assert shared["/work"]["subPath"] == "agent/attempts/0b9a-1/work"
    assert shared["/inputs"]["readOnly"]
    [only] = gate["volumeMounts"]
    assert only["readOnly"]
    assert only["subPath"] == "agent/attempts/0b9a-1/kube"


def test_a_job_is_run_once_and_ends_without_its_agent() -> None:
    job = objects.job_of(TASK, NAMED, PLACE)
    assert job["spec"]["backoffLimit"] == 0
    seconds = BOUNDS.seconds + objects.NET_SECONDS
    assert job["spec"]["activeDeadlineSeconds"] == seconds
    assert pod_spec()["activeDeadlineSeconds"] == seconds  # the node enforces it as well
    assert pod_spec()["restartPolicy"] == "Never"
    assert job["spec"]["ttlSecondsAfterFinished"]


def test_no_word_of_a_job_means_anything_to_the_cluster() -> None:
    [job] = pod_spec()["containers"]
    assert job["command"] == ["python3", "-c", "print('$$(HOME) $$$$')"]
    [own] = pod_spec(replace(TASK, job_type="docker"))["containers"]
    assert own["args"] == job["command"]
    assert "command" not in own
    assert "command" not in pod_spec(replace(TASK, command=()))["containers"][0]


def test_secrets_are_in_a_secret_that_goes_with_its_job() -> None:
    job = {"metadata": {"uid": "u-1"}}
    assert "a secret" not in str(objects.job_of(TASK, NAMED, PLACE))
    secret = objects.secret_of(TASK, NAMED, job)
    assert set(secret["data"]) == {"HOME", "HF_TOKEN"}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    for name in ("A-B", "1A", "", "PROXYD_ATTEMPT", "A=B"):
        with pytest.raises(TaskError, match="no name"):
            objects.secret_of(replace(TASK, env={name: "x"}), NAMED, job)
    with pytest.raises(TaskError, match="more than"):
        objects.secret_of(replace(TASK, env={"A": "x" * 1_000_000}), NAMED, job)


@cases("attempt_id", ["", "../x", "a/b", "x" * 1000])
def test_an_attempt_without_an_identifier_has_no_name(attempt_id: str) -> None:
    with pytest.raises(TaskError):
        _ = Named("0123456789ab", attempt_id).name


def test_names_fit_into_the_limits_of_a_cluster() -> None:
    longest = Named("0123456789ab-check", "A_" * 40)
    assert len(longest.name) + len("-abcde") <= 63
    assert longest.name == longest.name.lower()
    pod = {"metadata": longest.metadata}
    assert objects.attempts_of([pod, {"metadata": {}}]) == {"A_" * 40}


def pod_with(phase: str = "Running", **status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "status": {"phase": phase, **status}}


def ended(exit_code: int, reason: str, message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "job", "state": state}]}


@cases(
    ("pod", "end"),
    [
        (pod_with(), None),
        (pod_with(containerStatuses=[{"name": "job", "state": {"running": {}}}]), None),
        (pod_with("Succeeded", **ended(0, "Completed")), End(0)),
        (pod_with("Failed", **ended(3, "Error")), End(3)),
        (pod_with("Failed", **ended(137, "OOMKilled")), End(137, is_out_of_memory=True)),
        (
            pod_with("Failed", **ended(128, "StartError", 'exec: "x": not found')),
            End(128, words='StartError: exec: "x": not found'),
        ),
    ],
)
def test_the_end_of_a_pod_is_that_of_its_job(pod: dict[str, Any], end: End | None) -> None:
    assert objects.end_of(pod) == end


@cases(
    ("reason", "message", "is_own"),
    [
        ("Evicted", "Pod ephemeral local storage usage exceeds the total limit", True),
        (
            "Evicted",
            "The node was low on resource: ephemeral-storage. It exceeds its request of 0.",
            False,
        ),
        ("DeadlineExceeded", "Pod was active on the node longer than the deadline", False),
        ("NodeLost", "Node is unresponsive", False),
        ("Preempting", "Preempted in order to admit critical pod", False),
    ],
)
def test_an_end_by_the_cluster_is_the_jobs_fault_only_where_it_is(
    reason: str, message: str, *, is_own: bool
) -> None:
    pod = pod_with("Failed", reason=reason, message=message, **ended(137, "Error"))
    end = objects.end_of(pod)
    assert end is not None
    assert end.is_out_of_disk == is_own
    assert bool(end.lost) != is_own


def test_a_pod_that_has_vanished_from_its_node_is_no_success() -> None:
    end = objects.end_of(pod_with("Failed"))
    assert end is not None
    assert end.lost
    unknown = objects.end_of(pod_with("Failed", **ended(137, "ContainerStatusUnknown")))
    assert unknown is not None
    assert unknown.lost


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "words"}}
    return pod_with("Pending", initContainerStatuses=[{"name": "gate", "state": state}])


def test_the_reason_of_a_pod_that_does_not_come_to_the_gate_has_a_kind() -> None:
    for reason, kind, is_final in (
        ("InvalidImageName", "image", True),
        ("ErrImagePull", "image", False),
        ("ImagePullBackOff", "image", False),
        ("CreateContainerError", "host", False),
    ):
        found = objects.hindrance_of(waiting(reason))
        assert found is not None
        assert (found.kind, found.is_final) == (kind, is_final)
    assert objects.hindrance_of(waiting("PodInitializing")) is None
    unscheduled = pod_with(
        "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}]
    )
    found = objects.hindrance_of(unscheduled)
    assert found is not None
    assert found.is_unscheduled


@cases(
    ("reason", "end"),
    [
        ("ContainerCreating", None),
        ("CreateContainerError", End(127, words="CreateContainerError: words")),
        ("CreateContainerConfigError", End(None, lost="CreateContainerConfigError: words")),
        ("ImagePullBackOff", End(None, lost="ImagePullBackOff: words")),
    ],
)
def test_a_failed_start_is_the_jobs_fault_only_where_it_is(reason: str, end: End | None) -> None:
    state = {"waiting": {"reason": reason, "message": "words"}}
    pod = pod_with("Pending", containerStatuses=[{"name": "job", "state": state}])
    assert objects.start_problem_of(pod) == end


def test_a_pod_lives_until_its_job_has_ended() -> None:
    gone: dict[str, Any] = {"name": "gate", "state": {"terminated": {"exitCode": 137}}}
    through = {"name": "gate", "state": {"terminated": {"exitCode": 0}}}
    assert objects.is_live(pod_with("Unknown"))
    assert objects.is_live(pod_with("Pending"))
    assert objects.is_live(pod_with("Pending", initContainerStatuses=[through]))
    assert not objects.is_live(pod_with("Pending", initContainerStatuses=[gone]))
    assert not objects.is_live(pod_with("Running", **ended(0, "Completed")))
    assert not objects.is_live(pod_with("Failed"))


@cases(
    ("text", "value"),
    [("250m", 0.25), ("4", 4.0), ("16Gi", 16 * 2.0**30), ("24601234Ki", 24601234 * 1024.0),
     ("1e3", 1000.0), ("8G", 8e9), ("?", 0.0), ("", 0.0)],
)  # fmt: skip
def test_numbers_are_read_as_a_cluster_writes_them(text: str, value: float) -> None:
    assert objects.quantity(text) == value


def test_nodes_that_take_none_of_our_jobs_are_not_counted() -> None:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "pool": "strangers"}
    node: dict[str, Any] = {
        "metadata": {"name": "a", "labels": labels},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "7500m", "memory": "32Gi"},
        },
    }
    others = [
        {**node, "spec": {"unschedulable": True}},
        {**node, "spec": {"taints": [{"effect": "NoSchedule"}]}},
        {**node, "metadata": {"name": "b", "labels": {**labels, "pool": "own"}}},
        {**node, "status": {**node["status"], "conditions": []}},
    ]
    [found] = objects.nodes_of([node, *others], PLACE)
    assert (found.cores, found.memory_bytes) == (7.5, 32 << 30)


@cases(
    ("change", "finding"),
    [
        ({"user": 0}, "walls"),
        ({"status": {**TOLD["status"], "CapEff": "00000000a80425fb"}}, "walls"),
        ({"status": {**TOLD["status"], "CapBnd": "00000000a80425fb"}}, "walls"),
        ({"status": {**TOLD["status"], "NoNewPrivs": "0"}}, "walls"),
        ({"status": {**TOLD["status"], "Seccomp": "0"}}, "walls"),
        ({"memory": "max"}, "walls"),
        ({"memory": ""}, "walls"),
        ({"cores": "max 100000"}, "walls"),
        ({"cores": "-1 100000"}, "walls"),
        ({"written": ["/etc/written"]}, "walls"),
        ({"has_token": True}, "walls"),
        ({"log": ""}, "walls"),
        ({"reached": ["10.0.0.1:443"]}, "network"),
        ({"threads": objects.PROCESSES_MAX + 1}, "processes"),
    ],
)
def test_each_wall_that_a_pod_on_trial_misses_is_found(
    change: dict[str, Any], finding: str
) -> None:
    assert all(each.is_met for each in kube_trial.judge(TOLD, kube_trial.BOUNDS))
    found = kube_trial.judge({**TOLD, **change}, kube_trial.BOUNDS)
    assert [each.id for each in found if not each.is_met] == [f"kubernetes-{finding}"]


def test_the_gate_opens_at_the_word_and_not_before(tmp_path: Path) -> None:
    """It needs nothing of the image that it runs in, so it can be run here, in none."""
    machine = platform.machine()
    if machine not in _GATE:
        pytest.skip("no gate for this processor")
    gate, word = tmp_path / "gate", tmp_path / "go-1"
    gate.write_bytes(machine_code.program(machine, _GATE[machine]))
    gate.chmod(0o500)
    with subprocess.Popen([gate, word], env={}) as waits:
        (tmp_path / "go-2").touch()  # for another pod

        def sleeps() -> bool:
            return Path(f"/proc/{waits.pid}/stat").read_text().split()[2] == "S"

        until_true(sleeps, "it waits")
        assert waits.poll() is None
        word.touch()
        assert waits.wait(10) == 0
