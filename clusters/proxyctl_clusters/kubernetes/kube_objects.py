"""Makes the objects for a Kubernetes cluster, and reads its answers. Pure.

An attempt is a Job with one pod. The pod has one step before the job's own container: a small
program, in the job's own image, that waits for the word to begin. So at the word to begin, the
image is there and the pod has its node, and the job does not pay for that time.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import INPUTS, LABEL, WORK, Task, TaskError
from proxyctl.worker.executors.limits.base import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXCHANGE: Final = (
    "kube"  # in the attempt's folder; the step before the job sees it, the job does not
)
GATE_PROGRAM: Final = "gate"
GO: Final = "go-"  # and the identifier of the one pod that may begin
NETWORK: Final = "none"  # the name of the policy, behind our prefix
SCOPE_LABEL: Final = "proxyd-scope"
ATTEMPT_LABEL: Final = "proxyd-attempt"
NETWORK_LABEL: Final = "proxyd-network"
CONTAINER: Final = "job"
NO_PORTS: Final = "ports of a job on Kubernetes cannot be reached: it runs on another machine"

# How many threads one pod may start before nothing is taken to bound them. A cluster says so for
# all of its pods (podPidsLimit), so it is more than one job would be given on a device.
PROCESSES_MAX: Final = 4096
# The cluster ends an attempt this time after its own end, if everything else has failed.
NET_SECONDS: Final = 1800
_KEPT_SECONDS: Final = 3600  # for a Job after its end, if this agent does not remove it
_LOG_BYTES: Final = 256 << 20  # of a node's disk, for a pod's output before the node rotates it
_GATE_MEMORY_BYTES: Final = 32 << 20  # runtimes need some to start anything
_GATE_CORES: Final = 0.1
_GATE_PLACE: Final = "/.proxyd"
_GRACE_SECONDS: Final = 10  # the time of a pod to end, where no grace is set

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_MAX_BYTES: Final = 900_000  # a cluster takes a million with everything around them
COULD_NOT_START: Final = 127  # as shells have it
_OVER: Final = ("Succeeded", "Failed")
_COMING: Final = ("PodInitializing", "ContainerCreating")
_IMAGE_IS_BAD: Final = ("InvalidImageName", "ErrImageNeverPull")
_IMAGE_IS_MISSING: Final = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError")
_WORDS_MAX_CHARACTERS: Final = 400
_UNITS: Final = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]i?|)")


@dataclass(frozen=True)
class Place:
    """Place of jobs in a cluster.

    Attributes:
        namespace: of all that is made there.
        claim: name of the volume that has the agent's folder.
        arch: of the nodes, as Kubernetes calls it.
        nodes: labels that a node must have.
        runtime: name of a class of runtimes; "" for the cluster's own.
        user: that jobs are on their nodes; never root.
    """

    namespace: str
    claim: str
    arch: str
    user: int
    nodes: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""


@dataclass(frozen=True)
class Named:
    """The names of one attempt's objects.

    Attributes:
        scope: of the agent.
        attempt_id: of the attempt.
        folder: of the attempt, seen from the top of the claim.
    """

    scope: str
    attempt_id: str
    folder: str = ""

    @property
    def name(self) -> str:
        """Return the name of everything that is made for it."""
        return f"proxyd-{self.scope}-{self._digest}"

    @property
    def selector(self) -> str:
        """Return the label selector of its pods."""
        return f"{SCOPE_LABEL}={self.scope},{ATTEMPT_LABEL}={self._digest}"

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the labels that distinguish its objects."""
        labels = {
            SCOPE_LABEL: self.scope,
            ATTEMPT_LABEL: self._digest,
            NETWORK_LABEL: NETWORK,
        }
        return {"labels": labels, "annotations": {ATTEMPT_LABEL: self.attempt_id}}

    @property
    def _digest(self) -> str:
        # An identifier may have more characters than a label, and others than a name.
        return hashlib.sha256(name_of(self.attempt_id).encode()).hexdigest()[:24]


def job_of(task: Task, named: Named, place: Place, *, pulls: bool = True) -> dict[str, Any]:
    """Return the Job of an attempt.

    Args:
        task: the task to run; it names an image.
        named: whose it is.
        place: where it runs.
        pulls: asks the registry even for an image that a node has: the image on a node may be the
            owner's own, which is not meant for strangers.
    """
    seconds = task.bounds.seconds + NET_SECONDS
    pod = _pod(task, named, place, "Always" if pulls else "IfNotPresent")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": named.name, **named.metadata},
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": named.metadata,
                # The node keeps its own deadline, even while it has no connection to the cluster.
                "spec": {**pod, "activeDeadlineSeconds": seconds},
            },
        },
    }


def _pod(task: Task, named: Named, place: Place, pull_policy: str) -> dict[str, Any]:
    memory = task.bounds.memory_bytes
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "job",
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["127.0.0.1"]
        },  # no such server exists: names are a way out as well
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "nodeSelector": {
            **place.nodes,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": place.arch,
        },
        **({"runtimeClassName": place.runtime} if place.runtime else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": place.user,
            "runAsGroup": place.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "folder", "persistentVolumeClaim": {"claimName": place.claim}},
            # In memory, and so within the job's own bound of it.
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(memory // 2)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(memory // 2)}},
        ],
        "initContainers": [_gate(task, named, pull_policy)],
        "containers": [_container(task, named)],
    }


def _gate(task: Task, named: Named, pull_policy: str) -> dict[str, Any]:
    identifier = {"fieldRef": {"fieldPath": "metadata.uid"}}
    return {
        "name": GATE_PROGRAM,
        "image": task.image,
        "imagePullPolicy": pull_policy,
        "command": [f"{_GATE_PLACE}/{GATE_PROGRAM}", f"{_GATE_PLACE}/{GO}$(POD)"],
        "env": [{"name": "POD", "valueFrom": identifier}],
        "workingDir": "/",
        "resources": _resources(_GATE_CORES, _GATE_MEMORY_BYTES),
        "securityContext": _walls(),
        "volumeMounts": [_mount(named, EXCHANGE, _GATE_PLACE, is_read_only=True)],
    }


def _container(task: Task, named: Named) -> dict[str, Any]:
    # For a docker job, the image's own program gets the job's command as arguments; else it is the
    # program.
    part = "args" if task.job_type == "docker" else "command"
    words = [each.replace("$", "$$") for each in task.command]  # else "$(NAME)" would be replaced
    return {
        "name": CONTAINER,
        "image": task.image,
        # The gate has just asked for it: the same image runs here, and a registry that is slow or
        # busy by then neither takes the job's time nor fails the job.
        "imagePullPolicy": "IfNotPresent",
        **({part: words} if words else {}),
        "env": [{"name": LABEL, "value": task.attempt_id}],
        "envFrom": [{"secretRef": {"name": named.name}}],
        "workingDir": f"/{WORK}",
        "resources": _resources(task.bounds.cores, task.bounds.memory_bytes),
        "securityContext": _walls(),
        "volumeMounts": [
            _mount(named, WORK, f"/{WORK}"),
            _mount(named, INPUTS, f"/{INPUTS}", is_read_only=True),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's
        ],
    }


def _resources(cores: float, memory_bytes: int) -> dict[str, Any]:
    """Return the promised resources of a container, which are also its limits."""
    bounds = {
        "cpu": f"{max(1, round(cores * 1000))}m",
        "memory": str(memory_bytes),
        "ephemeral-storage": str(_LOG_BYTES),
    }
    return {"requests": bounds, "limits": bounds}


def _walls() -> dict[str, Any]:
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _mount(named: Named, part: str, path: str, *, is_read_only: bool = False) -> dict[str, Any]:
    folder = f"{named.folder}/{part}".lstrip("/")
    return {"name": "folder", "mountPath": path, "subPath": folder, "readOnly": is_read_only}


def secret_of(task: Task, named: Named, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's variables, which go when its Job goes.

    Raises:
        TaskError: one of them has no name that could be a variable's, or they are too large.
    """
    for name in task.env:
        if not _VARIABLE.fullmatch(name) or name == LABEL:
            raise TaskError("job", f"no name for a variable: {name!r}")
    if sum(len(name) + len(value.encode()) for name, value in task.env.items()) > _SECRET_MAX_BYTES:
        raise TaskError("job", f"its variables have more than {_SECRET_MAX_BYTES} bytes")
    env = {"HOME": f"/{WORK}", **task.env}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": named.name,
        "uid": job["metadata"]["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": named.name, **named.metadata, "ownerReferences": [owner]},
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in env.items()},
    }


def policy(name: str) -> dict[str, Any]:
    """Return the rule that forbids all connections of jobs, in both directions."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchLabels": {NETWORK_LABEL: NETWORK}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def require_possible(task: Task) -> None:
    """Refuse a task that no cluster can run.

    Raises:
        TaskError: why.
    """
    if task.network != "none":
        # The way out is served by the agent, which is not where the job is.
        raise TaskError("refused", "a job on Kubernetes has no network here")
    if task.gpus:
        raise TaskError("refused", "GPUs of a cluster are not lent")
    if task.ports:
        raise TaskError("refused", NO_PORTS)
    if any("\0" in each for each in (*task.command, *task.env.values())):
        raise TaskError("job", "a program, argument or variable with a NUL in it")


# The functions from here on read answers.


def attempts_of(objects: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the attempts that some Jobs or pods belong to."""
    return {
        (each["metadata"].get("annotations") or {}).get(ATTEMPT_LABEL, "") for each in objects
    } - {""}


def is_live(pod: Mapping[str, Any]) -> bool:
    """Return whether anything of a pod runs, or may run yet, as far as the cluster knows."""
    gate = _state(pod, "initContainerStatuses", GATE_PROGRAM).get("terminated") or {}
    has_failed = bool(gate) and gate.get("exitCode") != 0  # so the job's own never starts
    has_ended = "terminated" in _state(pod, "containerStatuses", CONTAINER)
    return phase_of(pod) not in _OVER and not has_failed and not has_ended


def is_job_over(job: Mapping[str, Any]) -> bool:
    """Return whether a Job will start nothing more."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in conditions
    )


def phase_of(pod: Mapping[str, Any]) -> str:
    """Return the phase of a pod."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_waiting_for_word(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has its node and its image, and waits at the gate."""
    if (pod["metadata"]).get("deletionTimestamp"):
        return False
    return "running" in _state(pod, "initContainerStatuses", GATE_PROGRAM)


def image_of(pod: Mapping[str, Any]) -> str:
    """Return the digest of the image that a pod runs; "" if the node does not report it."""
    for each in (pod.get("status") or {}).get("initContainerStatuses") or []:
        _, _, digest = str(each.get("imageID") or "").rpartition("@")
        if digest.startswith("sha256:"):
            return digest
    return ""


@dataclass(frozen=True)
class Hindrance:
    """The reason why a pod does not reach the gate.

    Attributes:
        kind: of the failure, as `TaskError` has it.
        words: the cluster's reason.
        is_final: waiting changes nothing.
        is_image: it is the image that is missing, which a registry may yet give.
        is_unscheduled: no node has room, which may change at any time.
    """

    kind: str
    words: str
    is_final: bool
    is_image: bool = False
    is_unscheduled: bool = False


def hindrance_of(pod: Mapping[str, Any]) -> Hindrance | None:
    """Return the hindrance that keeps a pod from the gate; None where nothing is known of any."""
    status = pod.get("status") or {}
    if phase_of(pod) in _OVER:
        words = _said(status) or _said(_state(pod, "initContainerStatuses", GATE_PROGRAM))
        return Hindrance("host", words or "its pod has ended before it began", is_final=True)
    waiting = _state(pod, "initContainerStatuses", GATE_PROGRAM).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in _IMAGE_IS_BAD:
        return Hindrance("image", _said(waiting), is_final=True)
    if reason in _IMAGE_IS_MISSING:
        return Hindrance("image", _said(waiting), is_final=False, is_image=True)
    if reason and reason not in _COMING:
        return Hindrance("host", _said(waiting), is_final=False)
    for each in status.get("conditions") or []:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return Hindrance("host", _said(each), is_final=False, is_unscheduled=True)
    return None


@dataclass(frozen=True)
class End:
    """The end of a job's container.

    Attributes:
        status: its exit status; None where the cluster does not know one.
        is_out_of_memory: the kernel has ended it for that.
        is_out_of_disk: the node has ended it because it wrote too much to the node's disk.
        lost: the cluster has ended it, for this reason.
        words: the cluster's words beside the status.
    """

    status: int | None
    is_out_of_memory: bool = False
    is_out_of_disk: bool = False
    lost: str = ""
    words: str = ""


def end_of(pod: Mapping[str, Any]) -> End | None:
    """Return how the job has ended; None while it has not."""
    status = pod.get("status") or {}
    if phase_of(pod) == "Failed" and status.get("reason"):
        return _end_by_cluster(status)
    terminated = _state(pod, "containerStatuses", CONTAINER).get("terminated")
    if terminated is None:
        is_over = phase_of(pod) in _OVER
        return End(None, lost="the cluster does not say how it ended") if is_over else None
    why = str(terminated.get("reason") or "")
    if why == "ContainerStatusUnknown":
        return End(None, lost="its node does not know how it ended")
    return End(
        int(terminated.get("exitCode") or 0),
        is_out_of_memory=why == "OOMKilled",
        words="" if why in ("Completed", "Error", "OOMKilled") else _said(terminated),
    )


def _end_by_cluster(status: Mapping[str, Any]) -> End:
    words = _said(status)
    if status["reason"] != "Evicted":  # DeadlineExceeded, NodeLost, NodeShutdown, Preempting
        return End(None, lost=f"the cluster has ended it: {words}")
    if "exceed" in words and "low on resource" not in words:  # its own bound, not the node's
        return End(None, is_out_of_disk=True, words=words)
    return End(None, lost=f"the cluster has put it off its node: {words}")


def start_problem_of(pod: Mapping[str, Any]) -> End | None:
    """Return the end of a job whose container does not start once it may; None if it does."""
    waiting = _state(pod, "containerStatuses", CONTAINER).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in ("", *_COMING):
        return None
    if reason in (*_IMAGE_IS_BAD, *_IMAGE_IS_MISSING, "CreateContainerConfigError"):
        # The gate has had the image, and variables and volumes are as this program asked for them.
        return End(None, lost=_said(waiting))
    return End(COULD_NOT_START, words=_said(waiting))


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether the job's container runs."""
    return "running" in _state(pod, "containerStatuses", CONTAINER)


@dataclass(frozen=True)
class Node:
    """A node's capacity for pods."""

    name: str
    cores: float
    memory_bytes: int


def nodes_of(objects: Sequence[Mapping[str, Any]], place: Place) -> list[Node]:
    """Return the nodes that may be given our jobs now."""
    wanted = {**place.nodes, "kubernetes.io/arch": place.arch, "kubernetes.io/os": "linux"}
    found = []
    for each in objects:
        labels = each["metadata"].get("labels") or {}
        spec, status = each.get("spec") or {}, each.get("status") or {}
        taints = [taint.get("effect") for taint in spec.get("taints") or []]
        if (
            spec.get("unschedulable")
            or any(effect in ("NoSchedule", "NoExecute") for effect in taints)
            or any(labels.get(name) != value for name, value in wanted.items())
            or not is_ready(each)
        ):
            continue
        room = status.get("allocatable") or {}
        found.append(
            Node(
                str(each["metadata"]["name"]),
                quantity(room.get("cpu", "0")),
                int(quantity(room.get("memory", "0"))),
            )
        )
    return found


def is_ready(node: Mapping[str, Any]) -> bool:
    """Return whether the cluster has a connection to a node."""
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in (node.get("status") or {}).get("conditions") or []
    )


def quantity(text: object) -> float:
    """Return a number as Kubernetes writes it, like `250m` or `16Gi`; 0 for other texts."""
    match = _QUANTITY.fullmatch(str(text))
    return float(match[1]) * _UNITS.get(match[2], 0.0) if match else 0.0


def _state(pod: Mapping[str, Any], part: str, name: str) -> dict[str, Any]:
    for each in (pod.get("status") or {}).get(part) or []:
        if each.get("name") == name:
            return dict(each.get("state") or {})
    return {}


def _said(fields: Mapping[str, Any]) -> str:
    fields = next(iter(fields.values()), {}) if "terminated" in fields else fields
    words = (fields.get("reason"), fields.get("message"))
    return ": ".join(" ".join(str(each).split()) for each in words if each)[:_WORDS_MAX_CHARACTERS]
