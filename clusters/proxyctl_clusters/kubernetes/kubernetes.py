"""The executor for a Kubernetes cluster: an attempt is a Job of one pod.

`prepare` has the cluster make the pod, and waits until it has its node and its image and stands at
the gate: so the job does not pay for that time. The supervisor starts `kube_client` here, which
opens the gate, and shows the pod's output. The folder of an attempt lies on a volume that the pods
of the cluster also have; that is how inputs get in and outputs get out.

All objects of an attempt in a cluster are found by their labels. Where the API server is away the
running jobs are unknown, and the executor raises an error.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.base.programs import python
from proxyctl.worker.executors.base.base import (
    INPUTS,
    WORK,
    Ending,
    Finding,
    Launch,
    Task,
    TaskError,
)
from proxyctl.worker.executors.base.ownership import give_away
from proxyctl.worker.executors.bwrap import machine_code
from proxyctl.worker.executors.limits.base import require_sane, scope_of
from proxyctl_clusters.kubernetes import kube_objects as objects
from proxyctl_clusters.kubernetes import kube_trial
from proxyctl_clusters.kubernetes.kube_api import EXPORT, KubeApi, KubeError, read_access
from proxyctl_clusters.kubernetes.kube_objects import EXCHANGE, Named, Node, Place

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from proxyctl_clusters.kubernetes.kube_settings import Settings

_CLIENT: Final = "proxyctl_clusters.kubernetes.kube_client"
POD: Final = "pod.json"  # in the exchange: the pod that may begin, and its access
OVER_FILE: Final = "over.json"  # the last words of `kube_client`

_POLICY: Final = "proxyd-none"
_JOB: Final = 65_532  # the user that jobs are where the agent is root; it needs no name anywhere
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_QUEUE_SECONDS: Final = 300.0  # for a node and an image
_IMAGE_SECONDS: Final = 20.0  # of refusals by a registry, before the image counts as missing
_HINDERED_SECONDS: Final = 60.0  # of failures of a node to make a pod, before the attempt fails
_LOOK_SECONDS: Final = 0.3  # between two looks at a pod that begins or ends
_END_SECONDS: Final = 60.0  # for a node to end a pod without a grace
_NOW_SECONDS: Final = 1  # 0 would have the cluster forget a pod that may still run

# Waits until the file that is its one argument is there: access() every 50 ms, then exit(0).
_GATE: Final = {
    "x86_64": bytes.fromhex(
        "488b5c2410 b815000000 4889df 31f6 0f05 85c0 7419 6880f0fa02 6a00 4889e7 31f6"
        "b823000000 0f05 4883c410 ebd7 31ff b83c000000 0f05"
    ),
    "aarch64": bytes.fromhex(
        "f30b40f9 600c8092 e10313aa 020080d2 030080d2 080680d2 010000d4 400100b4"
        "04109ed2 445fa0f2 ff13bfa9 e0030091 010080d2 a80c80d2 010000d4 ff430091 f1ffff17"
        "000080d2 a80b80d2 010000d4"
    ),
}


class Kubernetes:
    """Jobs on the nodes of a cluster.

    Args:
        folder: of the agent, on a volume that pods also have.
        queue_seconds: after which a job that has no node is given back.
    """

    name = "kubernetes"

    def __init__(
        self, folder: Path, settings: Settings, *, queue_seconds: float = _QUEUE_SECONDS
    ) -> None:
        self._folder = folder
        self._scope = scope_of(folder)
        self._settings = settings
        self._queue_seconds = queue_seconds
        self._known: KubeApi | None = None

    def check(self) -> list[Finding]:
        """Return the needs here and in the cluster, by a pod that checks its own walls."""
        try:
            self._place()
            version = self._api().get("/version")
            said, is_met = f"{version.get('gitVersion')} answers", True
        except (KubeError, TaskError) as error:
            said, is_met = _message(error), False
        findings = [
            Finding(
                "kubernetes",
                is_met,
                said,
                "an API server, a kubeconfig in JSON, a claim and what else setup asks for",
                "jobs are handed to it",
                "" if is_met else f"{EXPORT} > kube.json; chmod 600 kube.json",
            )
        ]
        if is_met:
            findings += self._check_cluster()
        if all(each.is_met for each in findings):
            findings += self._try_one()
        return findings

    def prepare(self, task: Task) -> Launch:
        """Start a pod that waits at its gate, and return the launch that opens the gate."""
        task = replace(task, image=task.image or self._settings.image)
        objects.require_possible(task)
        require_sane(task.bounds)
        named = self._named(task.attempt_id, task.folder)
        self.clean(task.attempt_id)
        try:
            self._require_node(task)
            pod = self._make(task, named, pulls=task.image != self._settings.image)
        except (KubeError, TaskError) as error:
            with suppress(TaskError):  # of the two, the first says more
                self.clean(task.attempt_id)
            raise error if isinstance(error, TaskError) else _refused(error) from None
        except OSError as error:
            raise TaskError("host", f"{task.folder}: {error.strerror}") from None
        digest = objects.image_of(pod)
        if digest:
            files.write(task.folder / names.IMAGE, {"digest": digest})
        return Launch(
            argv=(*python(_CLIENT), str(task.folder / EXCHANGE)),
            env={
                name: value for name, value in os.environ.items() if name.startswith("KUBERNETES_")
            },
            disk_bytes=task.bounds.disk_bytes,
        )

    def attach(self, task: Task, pid: int) -> None:
        """Do nothing: the program that the supervisor has started opens the gate."""

    def can_reach_ports(self) -> bool:
        """Return False."""
        return False

    def connect(self, attempt_id: str, port: int) -> socket.socket:  # noqa: ARG002 - to none
        """Refuse: the job runs on another machine; `prepare` has refused a task with ports."""
        raise TaskError("refused", objects.NO_PORTS)

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and kill it after the grace.

        Raises:
            TaskError: the cluster does not answer, so the state is unknown; or it does not end the
                pod.
        """
        try:
            self._stop(self._named(attempt_id), grace_s)
        except KubeError as error:
            raise TaskError("host", f"Kubernetes: {error}") from None

    def running(self) -> set[str]:
        """Return the attempts of this agent that the cluster runs, or will.

        Raises:
            TaskError: the cluster does not answer, so the state is unknown.
        """
        selector = f"{objects.SCOPE_LABEL}={self._scope}"
        try:
            pods = self._api().items(self._path("pods"), selector)
            jobs = self._api().items(self._path("jobs"), selector)
        except KubeError as error:
            raise TaskError("host", f"Kubernetes: {error}") from None
        live = [each for each in pods if objects.is_live(each)]
        return objects.attempts_of(live + [each for each in jobs if not objects.is_job_over(each)])

    def left(self) -> set[str]:
        """Return the result of `running`; the cluster forgets ended jobs by itself."""
        return self.running()

    def ended(self, attempt_id: str) -> Ending:
        """Return the cluster's record of the end."""
        over = files.read(self._exchange(attempt_id) / OVER_FILE)
        if over is None:
            return Ending(lost="what watched the job in its cluster was killed")
        return Ending(
            is_out_of_memory=bool(over["is_out_of_memory"]),
            is_out_of_disk=bool(over["is_out_of_disk"]),
            lost=str(over["lost"]),
        )

    def clean(self, attempt_id: str) -> None:
        """Remove the objects of an attempt from the cluster, and its files."""
        named = self._named(attempt_id)
        self.stop(attempt_id, 0)
        try:
            self._remove(named)
        except KubeError as error:
            raise TaskError("host", f"Kubernetes: {error}") from None
        shutil.rmtree(self._exchange(attempt_id), ignore_errors=True)

    def close(self) -> None:
        """Hold nothing: the jobs run on."""

    def _api(self) -> KubeApi:
        if self._known is None:
            self._known = KubeApi(read_access(self._settings.config))
        return self._known

    def _path(self, kind: str, name: str = "") -> str:
        return path_of(self._namespace(), kind, name)

    def _namespace(self) -> str:
        return self._settings.namespace or self._api().access.namespace

    def _place(self) -> Place:
        return place_of(self._settings, self._namespace(), self._folder)

    def _named(self, attempt_id: str, folder: Path | None = None) -> Named:
        return Named(self._scope, attempt_id, self._below_claim(folder) if folder else "")

    def _below_claim(self, folder: Path) -> str:
        """Return where a folder is, seen from the top of the claim."""
        _, top = claim_of(self._settings)
        try:
            return str(folder.absolute().relative_to(top)).removeprefix(".")
        except ValueError:
            raise TaskError("refused", f"{folder} is not below {top}, where the claim is") from None

    def _exchange(self, attempt_id: str) -> Path:
        return self._folder / names.ATTEMPTS / attempt_id / EXCHANGE

    def _require_node(self, task: Task) -> None:
        """Refuse a job that fits no node: the cluster would let it wait for ever."""
        nodes = self._nodes()
        cores, memory = task.bounds.cores, task.bounds.memory_bytes
        if not any(each.cores >= cores and each.memory_bytes >= memory for each in nodes):
            words = f"no node has {cores:g} cores and {memory >> 20} MiB of memory for one job"
            raise TaskError("refused" if nodes else "host", f"Kubernetes: {words}")

    def _nodes(self) -> list[Node]:
        return objects.nodes_of(self._api().items("/api/v1/nodes"), self._place())

    def _make(self, task: Task, named: Named, *, pulls: bool) -> dict[str, Any]:
        """Return the pod of an attempt, which waits at the gate."""
        api, place = self._api(), self._place()
        exchange = task.folder / EXCHANGE
        exchange.mkdir(mode=0o700, parents=True)
        _write_gate(exchange / objects.GATE_PROGRAM)
        if os.geteuid() == 0:
            for each in (WORK, INPUTS, EXCHANGE):
                give_away(task.folder / each, place.user, place.user)
        self._wall_off()
        job = api.post(self._path("jobs"), objects.job_of(task, named, place, pulls=pulls))
        api.post(self._path("secrets"), objects.secret_of(task, named, job))
        pod = self._await_gate(named)
        told = {
            "config": self._settings.config,
            "namespace": place.namespace,
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        files.write(exchange / POD, told)
        return pod

    def _wall_off(self) -> None:
        """Make the rule that forbids all connections of jobs, if it is missing."""
        try:
            self._api().post(self._path("networkpolicies"), objects.policy(_POLICY))
        except KubeError as error:
            if error.status != http.client.CONFLICT:  # it is there
                raise

    def _await_gate(self, named: Named) -> dict[str, Any]:
        """Wait until the pod has its node and its image.

        Raises:
            TaskError: it gets none.
            KubeError: the cluster does not answer.
        """
        deadline = time.monotonic() + self._queue_seconds
        hindered_at = 0.0
        while True:
            pods = self._pods(named)
            now = time.monotonic()
            hindrance = None
            for pod in pods:
                if objects.is_waiting_for_word(pod):
                    return pod
                hindrance = objects.hindrance_of(pod) or hindrance
            if hindrance is None or hindrance.is_unscheduled:
                hindered_at = now
            patience = _IMAGE_SECONDS if hindrance and hindrance.is_image else _HINDERED_SECONDS
            if hindrance and (hindrance.is_final or now - hindered_at > patience):
                raise TaskError(hindrance.kind, f"Kubernetes: {hindrance.words}")
            if now >= deadline:
                words = hindrance.words if hindrance else "nothing was heard of its pod"
                raise TaskError("host", f"the cluster has had no room for the job: {words}")
            time.sleep(_LOOK_SECONDS)

    def _stop(self, named: Named, grace_s: float) -> None:
        # First, so that the cluster makes no other pod in the place of one that ends. The present
        # pods are left to this program: they have the time that they are given here, not their own.
        self._api().delete(self._path("jobs", named.name), propagationPolicy="Orphan")
        deadline = time.monotonic() + grace_s + _END_SECONDS
        asked: set[str] = set()
        while True:
            live = [each for each in self._pods(named) if objects.is_live(each)]
            if not live:
                return
            for pod in live:
                if pod["metadata"]["uid"] not in asked:
                    self._ask_to_end(pod, grace_s)
                    asked.add(pod["metadata"]["uid"])
            if time.monotonic() > deadline:
                self._give_up(live)
            time.sleep(_LOOK_SECONDS)

    def _remove(self, named: Named) -> None:
        """Delete the pods and the secret of an attempt."""
        for pod in self._pods(named):
            self._ask_to_end(pod, 0)
        self._api().delete(self._path("secrets", named.name))

    def _pods(self, named: Named) -> list[dict[str, Any]]:
        return self._api().items(self._path("pods"), named.selector)

    def _ask_to_end(self, pod: dict[str, Any], grace_s: float) -> None:
        path = self._path("pods", pod["metadata"]["name"])
        ask_to_end(self._api(), path, str(pod["metadata"]["uid"]), grace_s)

    def _give_up(self, pods: list[dict[str, Any]]) -> None:
        """Make the cluster forget pods on nodes without a connection; such pods end by themselves.

        Raises:
            TaskError: a node is there, and does not end its pod.
        """
        for pod in pods:
            name = (pod.get("spec") or {}).get("nodeName")
            try:
                is_there = bool(name) and objects.is_ready(self._api().get(f"/api/v1/nodes/{name}"))
            except KubeError as error:
                if error.status != http.client.NOT_FOUND:
                    raise
                is_there = False
            if is_there:
                words = f"the node {name} does not end the pod {pod['metadata']['name']}"
                raise TaskError("host", f"Kubernetes: {words}")
            path = self._path("pods", pod["metadata"]["name"])
            self._api().delete(path, gracePeriodSeconds=0)

    def _check_cluster(self) -> list[Finding]:
        try:
            denied = kube_trial.denied(self._api(), self._namespace())
            nodes = self._nodes() if not denied else []
            claim = "" if denied else kube_trial.problem_of_claim(self._api(), self._claim_path())
        except (KubeError, TaskError) as error:
            return [_unanswered(_message(error))]
        return kube_trial.findings_of(denied, nodes, claim, self._place())

    def _claim_path(self) -> str:
        return self._path("persistentvolumeclaims", claim_of(self._settings)[0])

    def _try_one(self) -> list[Finding]:
        """Run a pod that checks its own walls; it is no attempt, so no sweep ends it."""
        attempt_id = f"check-{secrets.token_hex(4)}"
        folder = self._folder / attempt_id
        named = Named(f"{self._scope}-check", attempt_id, self._below_claim(folder))
        access = self._api().access
        task = kube_trial.task(attempt_id, folder, self._settings.image, access)
        try:
            for each in (WORK, INPUTS):
                (folder / each).mkdir(mode=0o700, parents=True)
            pod = self._make(task, named, pulls=False)
            (folder / EXCHANGE / f"{objects.GO}{pod['metadata']['uid']}").touch()
            told = self._await_told(named, folder)
            return kube_trial.judge(told, task.bounds)
        except (KubeError, TaskError, OSError, ValueError) as error:
            return [kube_trial.failed(_message(error))]
        finally:
            with suppress(KubeError, TaskError):
                self._stop(named, 0)
                self._remove(named)
            shutil.rmtree(folder, ignore_errors=True)

    def _await_told(self, named: Named, folder: Path) -> Mapping[str, Any]:
        """Return the findings of the pod on trial after its end; it may not have written them."""
        deadline = time.monotonic() + kube_trial.SECONDS
        while time.monotonic() < deadline:
            pods = self._pods(named)
            ends = [end for end in map(objects.end_of, pods) if end is not None]
            if ends:
                if ends[0].status != 0:
                    raise TaskError("host", f"a pod on trial failed: {ends[0]}")
                told = json.loads((folder / WORK / kube_trial.TOLD).read_text("utf-8"))
                log = self._path("pods", f"{pods[0]['metadata']['name']}/log")
                return {**told, "log": kube_trial.log_of(self._api(), log)}
            time.sleep(_LOOK_SECONDS)
        raise TaskError("host", "a pod on trial did not end")


def path_of(namespace: str, kind: str, name: str = "") -> str:
    """Return the path in the API of the objects of a kind, or of one of them."""
    group = {"jobs": "/apis/batch/v1", "networkpolicies": "/apis/networking.k8s.io/v1"}
    path = f"{group.get(kind, '/api/v1')}/namespaces/{namespace}/{kind}"
    return f"{path}/{name}" if name else path


def ask_to_end(api: KubeApi, path: str, uid: str, grace_s: float) -> None:
    """Ask a pod to end, by SIGTERM, and by SIGKILL after the grace.

    Args:
        api: of its cluster.
        path: of the pod.
        uid: its identifier: another one of that name is not meant.
        grace_s: how long it has.

    Raises:
        KubeError: the cluster does not answer.
    """
    seconds = max(_NOW_SECONDS, round(grace_s))
    try:
        api.delete(path, gracePeriodSeconds=seconds, preconditions={"uid": uid})
    except KubeError as error:
        if error.status != http.client.CONFLICT:  # it is another one's name by now
            raise


def claim_of(settings: Settings) -> tuple[str, Path]:
    """Return the name of the claim, and where its volume is here.

    Raises:
        TaskError: the owner has not said so.
    """
    name, _, top = settings.claim.partition(":")
    if not name or not top.startswith("/"):
        raise TaskError("refused", "no claim is named: --kube-claim NAME:/where/it/is/here")
    return name, Path(top)


def place_of(settings: Settings, namespace: str, folder: Path) -> Place:
    """Return the place where jobs run on the cluster.

    Raises:
        TaskError: a setting is missing, or the architecture of this machine is unknown.
    """
    name, top = claim_of(settings)
    arch = _ARCHITECTURES.get(platform.machine())
    if arch is None:
        message = f"nothing is known of processors of the kind {platform.machine()}"
        raise TaskError("refused", message)
    if not settings.image:
        raise TaskError("refused", "no image for scripts is named: --kube-image")
    if top not in (folder.absolute(), *folder.absolute().parents):
        raise TaskError("refused", f"{folder} is not below {top}, where the claim is")
    user = os.geteuid() or _JOB
    labels = dict(each.split("=", 1) for each in settings.nodes)
    return Place(namespace, name, arch, user, labels, settings.runtime)


def capacity(folder: Path, settings: Settings) -> tuple[int, int]:
    """Return the cores and the bytes of memory of all nodes that take jobs together.

    Raises:
        TaskError: the cluster does not answer, or a setting is missing.
    """
    try:
        api = KubeApi(read_access(settings.config))
        place = place_of(settings, settings.namespace or api.access.namespace, folder)
        nodes = objects.nodes_of(api.items("/api/v1/nodes"), place)
    except KubeError as error:
        raise TaskError("host", f"Kubernetes: {error}") from None
    return int(sum(each.cores for each in nodes)), sum(each.memory_bytes for each in nodes)


def _write_gate(path: Path) -> None:
    path.write_bytes(machine_code.program(platform.machine(), _GATE[platform.machine()]))
    path.chmod(0o500)


def _refused(error: KubeError) -> TaskError:
    return TaskError("host", f"Kubernetes does not take the job: {error}")


def _unanswered(said: str) -> Finding:
    return Finding(
        "kubernetes-answers", False, said, "a cluster that answers", "jobs run there", "try again"
    )


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, TaskError) else str(error)
