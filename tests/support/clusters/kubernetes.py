"""A real Kubernetes on this machine, with one node and everything in a folder of its own."""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from proxyctl.worker.executors.containers.trial import pause_image
from support.base.ports import closed_port
from support.base.waiting import until_true
from support.daemons.process import ROOT
from support.targets.tls import make_certificate
from support.workers.engines import make_image
from support.workers.registry import ImageParts

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
OTHERS = ("etcd", "containerd", "ctr", "runc", "ip")
MANIFEST = ROOT / "clusters" / "kubernetes.yaml"
NAMESPACE = "proxyd"
CLAIM = "shared"
IMAGE = "localhost/proxyd-scripts:1"
PAUSE = "localhost/proxyd-kube-pause:1"
NODE = "127.0.0.1"  # the API server also finds it there
BRIDGE = "pxkube0"
TOKEN = "the-token-of-the-tests"
KUBELET_PORT = 10250  # where every cluster has it
CONTAINERD = """
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"""
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "port": KUBELET_PORT,
    "readOnlyPort": 0,
    "healthzPort": 0,
    "failSwapOn": False,
    "podPidsLimit": 600,
    "evictionHard": {"memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100,
    "syncFrequency": "5s",
    "nodeStatusUpdateFrequency": "2s",
    "containerLogMaxSize": "1Mi",
}
# No address of the node, and no way to anywhere: a network that keeps to deny-all.
WALLED: dict[str, Any] = {"isGateway": False, "routes": []}
# As in most networks, which do not enforce the rule.
OPEN: dict[str, Any] = {"isGateway": True, "routes": [{"dst": "0.0.0.0/0"}]}


def require() -> Path:
    """Skip unless `make kubernetes` runs this; return the folder of Kubernetes' own programs."""
    folder = os.environ.get("PROXYD_KUBERNETES")
    if not folder:
        pytest.skip("`make kubernetes` starts a Kubernetes for this")
    missing = [each for each in PROGRAMS if not (Path(folder) / each).exists()]
    missing += [each for each in OTHERS if shutil.which(each) is None]
    if missing:
        pytest.fail(f"not there: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.fail("only root can start a Kubernetes")
    return Path(folder)


class Cluster:
    """A control plane and a node, whose parts can be ended and started again.

    Args:
        folder: for everything; with a short name, for there are sockets in it.
        programs: folder of Kubernetes' own programs.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.shared = folder / "shared"
        for each in ("shared", "cni", "certificates", "kubelet", "manifests"):
            (folder / each).mkdir()
        certificate = make_certificate(folder / "certificates")
        self.authority = certificate.path
        self._key = folder / "certificates" / "accounts.pem"
        _write_key(self._key)
        with closed_port() as self.port, closed_port() as self._etcd, closed_port() as self._peer:
            pass  # no other program is given them so soon
        (folder / "tokens").write_text(f"{TOKEN},tests,tests,system:masters\n")
        (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, pause=PAUSE))
        (folder / "kubelet.json").write_text(json.dumps(KUBELET))
        (folder / "kubeconfig").write_text(json.dumps(self.config(TOKEN)))
        self.set_network(WALLED)

    def set_network(self, kind: dict[str, Any]) -> None:
        """Set the network of new pods."""
        address = {"type": "host-local", "subnet": "10.211.0.0/24", "routes": kind["routes"]}
        address["dataDir"] = str(self.folder / "addresses")
        plugin = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": kind["isGateway"],
            "ipam": address,
        }
        # In place: containerd does not look again after a file was renamed.
        (self.folder / "cni" / "10-tests.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": "tests", "plugins": [plugin]})
        )

    def config(self, token: str) -> dict[str, Any]:
        """Return a kubeconfig."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority-data": authority,
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [
                {"name": "it", "context": {"cluster": "it", "user": "it", "namespace": NAMESPACE}}
            ],
            "clusters": [{"name": "it", "cluster": server}],
            "users": [{"name": "it", "user": {"token": token}}],
        }

    def start(self, name: str) -> None:
        """Start a part."""
        program = str(self._programs / name) if name in PROGRAMS else str(shutil.which(name))
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *self._options(name)], stdout=log, stderr=log, cwd=self.folder
            )

    def _options(self, name: str) -> list[str]:
        folder, etcd = self.folder, f"http://127.0.0.1:{self._etcd}"
        certificate, key = self.authority, self.authority.with_name("key.pem")
        config = f"--kubeconfig={folder}/kubeconfig"
        return {
            "etcd": [
                f"--data-dir={folder}/etcd",
                "--unsafe-no-fsync",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            ],
            "kube-apiserver": [
                f"--etcd-servers={etcd}",
                f"--secure-port={self.port}",
                "--bind-address=127.0.0.1",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--token-auth-file={folder}/tokens",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.212.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self._key}",
                f"--service-account-signing-key-file={self._key}",
                "--feature-gates=TTLAfterFinished=true",
                "--watch-cache=false",
            ],
            "kube-controller-manager": [
                config,
                "--leader-elect=false",
                "--port=0",
                "--secure-port=0",
                f"--service-account-private-key-file={self._key}",
                f"--root-ca-file={certificate}",
                "--feature-gates=TTLAfterFinished=true",
                "--node-monitor-grace-period=8s",
                "--node-monitor-period=1s",
            ],
            "kube-scheduler": [config, "--leader-elect=false", "--port=0", "--secure-port=0"],
            "containerd": [f"--config={folder}/containerd.toml"],
            "kubelet": [
                config,
                f"--config={folder}/kubelet.json",
                f"--root-dir={folder}/kubelet",
                f"--cert-dir={folder}/certificates",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{folder}/containerd.sock",
                f"--hostname-override={NODE}",
            ],
        }[name]

    def stop(self, name: str) -> None:
        """End a part."""
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(20)

    def ask(self, method: str, path: str, fields: object = None, kind: str = "json") -> Any:
        """Request something from the API server, as a user with every right."""
        tls = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=tls)
        body = fields if isinstance(fields, str) else json.dumps(fields) if fields else None
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": f"application/{kind}"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise AssertionError(f"{method} {path}: {answer.status} {data.decode()}")
        return json.loads(data) if data.startswith(b"{") else data.decode()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of jobs."""
        found = self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        assert isinstance(found, list)
        return found

    def left(self) -> list[str]:
        """Return the names of all that agents have made and not removed."""
        core, batch = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/batch/v1/namespaces/{NAMESPACE}"
        found = [
            each["metadata"]["name"]
            for path in (f"{core}/pods", f"{core}/secrets", f"{batch}/jobs")
            for each in self.ask("GET", path)["items"]
        ]
        return [each for each in found if each.startswith("proxyd-") and "token" not in each]

    def tell(self) -> str:
        """Return the last words of all parts."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{each.name}: {each.read_text()[-1500:]}" for each in logs)

    def is_answering(self) -> bool:
        with suppress(OSError, AssertionError, http.client.HTTPException):
            return bool(self.ask("GET", "/readyz") == "ok")
        return False

    def is_node_ready(self) -> bool:
        with suppress(OSError, AssertionError, http.client.HTTPException):
            node = self.ask("GET", f"/api/v1/nodes/{NODE}")
            ready = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
            return bool(ready[0]["status"] == "True" and not node["spec"].get("taints"))
        return False

    def add_images(self) -> None:
        """Add the images to the node that no registry has."""
        rootfs = self.folder / "scripts.tar"
        make_image(rootfs)
        for name, layer in ((IMAGE, rootfs.read_bytes()), (PAUSE, pause_image("x86_64"))):
            path = self.folder / "image.tar"
            command = ["/pause"] if name == PAUSE else ["/bin/sh"]
            write_image(path, name, ImageParts(layer, config={"Cmd": command}))
            address = f"--address={self.folder}/containerd.sock"
            subprocess.run(
                ["ctr", address, "-n", "k8s.io", "images", "import", str(path)],
                check=True,
                capture_output=True,
                timeout=60,
            )

    def apply(self) -> str:
        """Make the objects of an owner, and a volume; return the token of the agent."""
        for each in MANIFEST.read_text().split("\n---\n"):
            kind = next(x.split()[1] for x in each.splitlines() if x.startswith("kind:"))
            rights = "/apis/rbac.authorization.k8s.io/v1"
            path = {
                "Namespace": "/api/v1/namespaces",
                "Role": f"{rights}/namespaces/{NAMESPACE}/roles",
                "RoleBinding": f"{rights}/namespaces/{NAMESPACE}/rolebindings",
                "ClusterRole": f"{rights}/clusterroles",
                "ClusterRoleBinding": f"{rights}/clusterrolebindings",
            }.get(kind, f"/api/v1/namespaces/{NAMESPACE}/{kind.lower()}s")
            self.ask("POST", path, each, "yaml")
        size = {"storage": "1Gi"}
        spec = {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(self.shared)},
            "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
            "storageClassName": "",
        }
        self.ask("POST", "/api/v1/persistentvolumes", {"metadata": {"name": CLAIM}, "spec": spec})
        wanted = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": size},
            "storageClassName": "",
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
        self.ask("POST", path, {"metadata": {"name": CLAIM}, "spec": wanted})
        until_true(
            lambda: self.ask("GET", f"{path}/{CLAIM}")["status"].get("phase") == "Bound", self.tell
        )
        return self.token_of("proxyd-token")

    def token_of(self, name: str) -> str:
        """Return the token that a secret holds."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"
        until_true(lambda: "token" in self.ask("GET", path).get("data", {}), self.tell)
        return base64.b64decode(self.ask("GET", path)["data"]["token"]).decode()

    def sweep(self) -> None:
        """End the processes and unmount the volumes that the node has left."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "cmdline").read_bytes()
                if str(self.folder).encode() in words and b"containerd-shim" in words:
                    for child in (path / "task" / path.name / "children").read_text().split():
                        os.kill(int(child), signal.SIGKILL)
                    os.kill(int(path.name), signal.SIGKILL)
        mounts = [each.split()[4] for each in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in reversed([each for each in mounts if each.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)
        for group in Path("/sys/fs/cgroup").glob("*/kubepods"):
            for each in sorted(group.rglob("*"), reverse=True):
                if each.is_dir():
                    with suppress(OSError):
                        each.rmdir()
            with suppress(OSError):
                group.rmdir()


def _write_key(path: Path) -> None:
    """Write a key that signs tokens, as Kubernetes reads one."""
    path.write_bytes(
        rsa.generate_private_key(65_537, 2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def write_image(path: Path, name: str, parts: ImageParts) -> None:
    """Write an image as an archive that containerd takes."""
    blob = json.dumps(parts.fields).encode()
    manifest = {
        **parts.add(blob),
        "mediaType": parts.fields["mediaType"],
        "annotations": {"io.containerd.image.name": name},
    }
    contents = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode(),
        **{f"blobs/{digest.replace(':', '/')}": data for digest, data in parts.blobs.items()},
    }
    with tarfile.open(path, "w") as archive:
        for each, data in contents.items():
            member = tarfile.TarInfo(each)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start one, and end it with all that runs in it."""
    made = Cluster(folder, require())
    with ExitStack() as stack:
        stack.callback(made.sweep)
        for name in ("etcd", "kube-apiserver", "containerd"):
            stack.callback(made.stop, name)
            made.start(name)
        until_true((folder / "containerd.sock").exists, made.tell)
        made.add_images()
        until_true(made.is_answering, made.tell)
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            stack.callback(made.stop, name)
            made.start(name)
        until_true(made.is_node_ready, made.tell)
        yield made
