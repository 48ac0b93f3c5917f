"""Container engines with storage of their own, and images that are made here in a second."""

import io
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.docker import Docker
from proxyctl.worker.executors.containers.engine import Engine, call
from proxyctl.worker.executors.containers.gvisor import Gvisor
from proxyctl.worker.executors.containers.podman import Podman, choose_runtime
from support.base.waiting import until_true

PYTHON = Path("/usr/bin/python3")
IMAGE = "localhost/proxyd-test:1"
# Parts of Python's library that no test in a container needs, or that are large.
LEFT_OUT = {
    *("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "pydoc_data", "dist-packages"),
    *("asyncio", "curses", "dbm", "distutils", "email", "multiprocessing", "sqlite3", "unittest"),
    *("wsgiref", "xml", "xmlrpc"),
}


def require(*programs: str) -> None:
    """Skip a test where a program is missing; with REQUIRE_SANDBOX=1 it fails instead."""
    missing = [each for each in programs if shutil.which(each) is None]
    if not missing:
        return
    words = f"not installed: {', '.join(missing)}; `make clients` installs it"
    if os.environ.get("REQUIRE_SANDBOX") == "1":
        pytest.fail(words)
    pytest.skip(words)


def require_root() -> None:
    """Skip a test that only root can do."""
    if os.geteuid() != 0:
        pytest.skip("only root may start this engine")


def make_image(path: Path) -> None:
    """Write the file system of an image as a tar archive: busybox, and this system's Python."""
    require("busybox", "ldd", str(PYTHON))
    with tarfile.open(path, "w") as archive:
        for name in ("tmp", "work", "inputs", "proc", "dev", "sys", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        seen: set[str] = set()
        for each in _python_files():
            for file in (str(each), *_libraries(each)):
                if file not in seen:
                    seen.add(file)
                    _add(archive, file)
        _add(archive, "/bin/busybox", "usr/bin/busybox")
        applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
        for name in applets.stdout.split():
            _link(archive, f"bin/{name}", "/usr/bin/busybox")
        _link(archive, "usr/bin/python3", PYTHON.resolve().name)


def small_image(files: dict[str, bytes] | None = None) -> bytes:
    """Return the file system of an image with a shell, and a few more files, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, "/bin/busybox", "bin/sh")
        for name, content in (files or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _python_files() -> list[Path]:
    program = PYTHON.resolve()
    library = Path("/usr/lib") / program.name
    files = [each for each in sorted(library.rglob("*")) if each.is_file()]
    wanted = (
        each
        for each in files
        if each.relative_to(library).parts[0] not in LEFT_OUT
        and not each.relative_to(library).parts[0].startswith("config-")
    )
    return [program, *(each for each in wanted if "__pycache__" not in each.parts)]


def _libraries(path: Path) -> list[str]:
    if path.suffix not in (".so", path.resolve().suffix if path == PYTHON.resolve() else ".so"):
        return []
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    return [word for word in done.stdout.split() if word.startswith("/")]


def _add(archive: tarfile.TarFile, path: str, name: str | None = None) -> None:
    real = Path(path).resolve()
    member = archive.gettarinfo(str(real), arcname=(name or path).lstrip("/"))
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.islnk():
        member.type = tarfile.REGTYPE
        member.size = real.stat().st_size
    with real.open("rb") as file:
        archive.addfile(member, file)


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    archive.addfile(member)


@contextmanager
def podman_storage() -> Iterator[None]:
    """Make podman keep everything in a new folder, which is removed at the end."""
    require("podman", "runc")
    folder = Path(tempfile.mkdtemp(prefix="proxyd-podman-", dir="/var/tmp"))
    settings = folder / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    before = os.environ.get("CONTAINERS_STORAGE_CONF")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(settings)
    try:
        yield
    finally:
        subprocess.run(
            ["podman", "rm", "--all", "--force", "--time", "0"], check=False, capture_output=True
        )
        os.environ.pop("CONTAINERS_STORAGE_CONF")
        if before is not None:
            os.environ["CONTAINERS_STORAGE_CONF"] = before
        subprocess.run(["umount", folder / "graph" / "overlay"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


class DockerDaemon:
    """A dockerd with a socket and folders of its own, without a network."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._containerd is None:
            self._start_containerd()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("dockerd", "--host", self.host, "--data-root", self._folder / "data"),
                    *("--exec-root", self._folder / "exec", "--pidfile", self._folder / "pid"),
                    *("--iptables=false", "--bridge=none", "--shutdown-timeout", "1"),
                    *("--containerd", self._socket),
                    *("--insecure-registry", "127.0.0.1"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_true(self._answers, lambda: (self._folder / "log").read_text()[-2000:])

    @property
    def _socket(self) -> Path:
        return self._folder / "containerd.sock"

    def _start_containerd(self) -> None:
        """Start the daemon's containerd as a separate service, like on any machine."""
        with (self._folder / "log").open("ab") as log:
            self._containerd = subprocess.Popen(
                [
                    *("containerd", "--config", "/dev/null", "--address", self._socket),
                    *("--root", self._folder / "root", "--state", self._folder / "state"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_true(self._socket.exists, "containerd has no socket")

    def _answers(self) -> bool:
        command = ["docker", "--host", self.host, "version"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def kill(self) -> None:
        """End the daemon as a crash would, and nothing else."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)
        (self._folder / "pid").unlink(missing_ok=True)

    def lose_power(self) -> None:
        """Kill the daemon with its containers, and delete the state that it keeps in memory."""
        assert self._process is not None
        assert self._containerd is not None
        shims = [
            each
            for each in psutil.process_iter(["cmdline"])
            if any(str(self._socket) in word for word in each.info["cmdline"] or ())
        ]
        inside = [each for shim in shims for each in shim.children(recursive=True)]
        for each in {*shims, *inside}:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait(20)
        self._containerd.wait(20)
        self._containerd = None
        unmount_below(self._folder)
        for name in ("exec", "state"):
            shutil.rmtree(self._folder / name)
        for name in ("pid", "docker.sock", "containerd.sock", "containerd.sock.ttrpc"):
            (self._folder / name).unlink(missing_ok=True)

    def stop(self) -> None:
        """End the daemon and all processes that it started."""
        if self._process is not None and self._process.poll() is None:
            command = ["docker", "--host", self.host]
            done = subprocess.run(
                [*command, "ps", "-aq"], check=False, capture_output=True, text=True
            )
            if ids := done.stdout.split():
                subprocess.run([*command, "rm", "-f", *ids], check=False, capture_output=True)
            self._process.terminate()
            self._process.wait(30)
        if self._containerd is not None:
            self._containerd.terminate()
            self._containerd.wait(30)


@contextmanager
def docker_daemon() -> Iterator[DockerDaemon]:
    """A Docker Engine of its own, as root; removed at the end."""
    require("dockerd", "docker", "containerd", "runc")
    require_root()
    folder = Path(tempfile.mkdtemp(prefix="proxyd-docker-", dir="/var/tmp"))
    daemon = DockerDaemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        _end_what_is_left(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end_what_is_left(folder: Path) -> None:
    """End the leftovers of a killed engine: watchers of containers, and mounts."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (each / "cmdline").read_bytes():
                os.kill(int(each.name), signal.SIGKILL)
    unmount_below(folder)


def unmount_below(folder: Path) -> None:
    mounts = Path("/proc/mounts").read_text().splitlines()
    for line in reversed(mounts):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def containers_of(kind: str, folder: Path, host: str | None = None) -> Containers:
    """Return the executor of one kind of engine, for an agent with that folder."""
    engine: Engine
    if kind == "docker":
        engine = Docker(folder, host)
    elif kind == "gvisor":
        engine = Gvisor()
    else:
        engine = Podman(choose_runtime())
    return Containers(engine, folder=folder)


def add_image(engine: Engine, archive: Path | bytes, *changes: str, name: str = IMAGE) -> None:
    """Add an image to an engine; each change is a line of a Dockerfile."""
    options = [word for each in changes for word in ("--change", each)]
    if isinstance(archive, bytes):
        call(engine, "import", *options, "-", name, data=archive)
    else:
        call(engine, "import", *options, "-", name, stdin=archive)


def ordinary_user() -> pwd.struct_passwd | None:
    """Return a user that is not root and has sub-ids, as podman without root needs them."""
    with Path("/etc/subuid").open() as file:
        names = [line.split(":")[0] for line in file]
    for each in names:
        try:
            return pwd.getpwnam(each)
        except KeyError:
            continue
    return None
