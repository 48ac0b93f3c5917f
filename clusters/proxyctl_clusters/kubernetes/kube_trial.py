"""A pod on trial: it checks its walls from within, and tries to reach other machines.

A cluster does not always fulfil its objects: many enforce no network policies, and few bound the
processes of a pod. So the pod reads its own limits, and tries each wall.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import Bounds, Finding, Task
from proxyctl_clusters.kubernetes import kube_objects as objects
from proxyctl_clusters.kubernetes.kube_api import KubeError, Opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from proxyctl_clusters.kubernetes.kube_api import Access, KubeApi
    from proxyctl_clusters.kubernetes.kube_objects import Node, Place

TOLD: Final = "told.json"  # in the folder of the pod on trial
SECONDS: Final = 120.0  # from the word to its end
BOUNDS: Final = Bounds(
    cores=0.5, memory_bytes=256 << 20, disk_bytes=1 << 20, processes=512, seconds=120
)
_SAID: Final = "a line of the log\n"
_LOG_MAX_BYTES: Final = 1000
# Where a cloud gives machines their credentials, whichever cloud it is.
_METADATA: Final = ("169.254.169.254", 80)
_KUBELET: Final = 10250  # the port of the program that runs pods on a node

# (verb, group, resource, subresource); "" for the cluster's own objects, which have no namespace.
RIGHTS: Final = (
    ("create", "batch", "jobs", ""),
    ("list", "batch", "jobs", ""),
    ("delete", "batch", "jobs", ""),
    ("get", "", "pods", ""),
    ("list", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "", "secrets", ""),
    ("delete", "", "secrets", ""),
    ("get", "", "persistentvolumeclaims", ""),
    ("create", "networking.k8s.io", "networkpolicies", ""),
)
CLUSTER_RIGHTS: Final = (("get", "", "nodes", ""), ("list", "", "nodes", ""))

# Run by the owner's own image, as a job would be. Each thread waits for the same lock for ever.
_PROGRAM: Final = """\
import _thread, json, os, socket, sys, threading

def read(*paths):
    for path in paths:
        try:
            return open(path).read().strip()
        except OSError:
            pass
    return ""

def reached(host, port):
    try:
        socket.create_connection((host, port), 3).close()
    except OSError:
        return False
    return True

def is_written(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True

targets = json.loads(sys.argv[1])
for line in read("/proc/net/route").splitlines()[1:]:
    address, gateway = line.split()[1:3]
    if address == "00000000":  # its node, as most networks have it
        targets.append([socket.inet_ntoa(bytes.fromhex(gateway)[::-1]), KUBELET])
targets.append([os.environ.get("KUBERNETES_SERVICE_HOST", ""),
                int(os.environ.get("KUBERNETES_SERVICE_PORT", "0") or 0)])
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
groups = "/sys/fs/cgroup/"
told = {
    "user": os.getuid(),
    "status": {name: status.get(name, "").strip() for name in
               ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")},
    "memory": read(groups + "memory.max", groups + "memory/memory.limit_in_bytes"),
    "cores": read(groups + "cpu.max") or " ".join(
        (read(groups + "cpu/cpu.cfs_quota_us"), read(groups + "cpu/cpu.cfs_period_us"))),
    "written": [each for each in ("/written", "/etc/written", "/inputs/written")
                if is_written(each)],
    "has_token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "reached": ["%s:%s" % (host, port) for host, port in targets if host and reached(host, port)],
}
waiting = _thread.allocate_lock()
waiting.acquire()
threading.stack_size(1 << 16)
count = 1
try:
    while count <= int(sys.argv[2]):
        _thread.start_new_thread(waiting.acquire, ())
        count += 1
except RuntimeError:
    pass
told["threads"] = count
with open("/work/TOLD", "w") as file:
    json.dump(told, file)
sys.stdout.write(SAID)
sys.stdout.flush()
os._exit(0)
"""


def task(attempt_id: str, folder: Path, image: str, access: Access) -> Task:
    """Return the task of the pod on trial."""
    program = (
        _PROGRAM.replace("TOLD", TOLD)
        .replace("SAID", repr(_SAID))
        .replace("KUBELET", str(_KUBELET))
    )
    targets = json.dumps([[access.host, access.port], _METADATA])
    return Task(
        attempt_id=attempt_id,
        folder=folder,
        job_type="script",
        command=("python3", "-c", program, targets, str(objects.PROCESSES_MAX)),
        bounds=BOUNDS,
        image=image,
    )


def denied(api: KubeApi, namespace: str) -> list[str]:
    """Return the rights that we do not have, as `kubectl` has words for them.

    Raises:
        KubeError: the cluster does not answer.
    """
    wanted = [(namespace, each) for each in RIGHTS] + [("", each) for each in CLUSTER_RIGHTS]
    missing = []
    for space, (verb, group, resource, part) in wanted:
        attributes = {"namespace": space, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": part}},
        }
        answer = api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not (answer.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' if part else ''}{part}")
    return missing


def problem_of_claim(api: KubeApi, path: str) -> str:
    """Return the fault of a claim, "" if it has none.

    Raises:
        KubeError: the cluster does not answer.
    """
    try:
        claim = api.get(path)
    except KubeError as error:
        if not error.status:
            raise
        return str(error)
    phase = (claim.get("status") or {}).get("phase")
    modes = (claim.get("spec") or {}).get("accessModes") or []
    if phase != "Bound":
        return f"it is {phase}, not Bound"
    return "" if "ReadWriteMany" in modes else f"it is {', '.join(modes)}, not ReadWriteMany"


def log_of(api: KubeApi, path: str) -> str:
    """Return the beginning of a pod's log.

    Raises:
        KubeError: it is not available.
    """
    query = {"container": objects.CONTAINER, "limitBytes": str(_LOG_MAX_BYTES)}
    data = b"".join(api.lines(path, query, _LOG_MAX_BYTES, Opened()))
    return data.decode("utf-8", "replace")


def findings_of(
    missing: Sequence[str], nodes: Sequence[Node], claim: str, place: Place
) -> list[Finding]:
    """Return the findings that need no pod."""
    cores = sum(each.cores for each in nodes)
    largest = max((each.memory_bytes for each in nodes), default=0)
    rights = Finding(
        "kubernetes-rights",
        not missing,
        f"not allowed: {', '.join(missing)}" if missing else "all that is needed is allowed",
        f"a role that allows them in {place.namespace}, and to see nodes",
        "jobs are made, watched and removed by them",
        "kubectl apply the role in the documentation of this program" if missing else "",
    )
    if missing:
        return [rights]
    return [
        rights,
        Finding(
            "kubernetes-claim",
            not claim,
            claim or f"{place.claim} is bound",
            "a bound claim with the access mode ReadWriteMany",
            "the folder of a job lies there, for its pod and for this program",
            "" if not claim else f"kubectl -n {place.namespace} describe pvc {place.claim}",
        ),
        Finding(
            "kubernetes-nodes",
            bool(nodes),
            f"{len(nodes)} nodes with {cores:g} cores; the largest has {largest >> 20} MiB",
            f"a node that is ready, has no taints and is {place.arch}",
            "jobs run there",
            "" if nodes else "kubectl describe nodes, and look at --kube-nodes",
        ),
    ]


def judge(told: Mapping[str, Any], bounds: Bounds) -> list[Finding]:
    """Return the findings of a pod on trial about its walls."""
    problems = list(_problems(told, bounds))
    threads = int(told["threads"])
    is_bounded = threads <= objects.PROCESSES_MAX
    reached = [str(each) for each in told["reached"]]
    return [
        Finding(
            "kubernetes-walls",
            not problems,
            "; ".join(problems) or "a pod on trial was walled in as asked for",
            "a pod that has every wall and limit that it is given",
            "a job of a stranger could take the node otherwise",
            "look for what changes pods in this cluster" if problems else "",
        ),
        Finding(
            "kubernetes-network",
            not reached,
            f"a pod reached {', '.join(reached)}" if reached else "a pod reached nothing",
            "a network that enforces network policies",
            "a job of a stranger could speak to the cluster otherwise",
            "install a network that enforces them, like Calico or Cilium" if reached else "",
        ),
        Finding(
            "kubernetes-processes",
            is_bounded,
            f"a pod started {threads - 1} threads" + ("" if is_bounded else ", and could more"),
            f"a bound on the processes of a pod, {objects.PROCESSES_MAX} at most",
            "a job of a stranger could take all that a node has otherwise",
            "" if is_bounded else "podPidsLimit: 1024 in the configuration of each kubelet",
        ),
    ]


def failed(said: str) -> Finding:
    """Return the finding of a trial that told nothing."""
    return Finding(
        "kubernetes-trial",
        False,
        f"a pod on trial: {said}",
        "a pod that runs python3 of the image for scripts, and sees the folder of this program",
        "jobs run as it does",
        "kubectl describe pods, and look at --kube-image and --kube-claim",
    )


def _problems(told: Mapping[str, Any], bounds: Bounds) -> list[str]:
    status = told["status"]
    memory, cores = str(told["memory"]), str(told["cores"]).split()
    share = (
        int(cores[0]) / int(cores[1]) if len(cores) == 2 and all(map(str.isdigit, cores)) else None
    )
    tests = (
        (int(told["user"]) == 0, "it is root"),
        (status["CapEff"].strip("0") != "", f"it has the capabilities {status['CapEff']}"),
        (status["CapBnd"].strip("0") != "", f"it could get the capabilities {status['CapBnd']}"),
        (status["NoNewPrivs"] != "1", "it may gain privileges"),
        (status["Seccomp"] != "2", "its system calls are not filtered"),
        (bool(told["written"]), f"it could write to {', '.join(told['written'])}"),
        (bool(told["has_token"]), "it has a token of the cluster"),
        (
            not memory.isdigit() or int(memory) > bounds.memory_bytes,
            f"its limit of memory is {memory or 'not to be seen'}",
        ),
        (share is None or share > bounds.cores * 1.01, f"its limit of cores is {share}"),
        (told["log"] != _SAID, "its log is not what it printed"),
    )
    return [words for is_wrong, words in tests if is_wrong]
