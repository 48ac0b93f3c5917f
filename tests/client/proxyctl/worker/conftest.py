"""Engines for the tests of this folder, each started once by a process of the tests; a folder."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.base.once import made_once
from support.workers import engines

from proxyctl.worker.executors.containers.containers import Containers


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter, so that no mode of a folder is the wall."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file system of an image with busybox and Python."""
    engines.require("busybox", "ldd")
    return made_once(tmp_path_factory, "image.tar", engines.make_image)


@pytest.fixture(scope="session")
def podman_storage() -> Iterator[None]:
    with engines.podman_storage():
        yield


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[engines.DockerDaemon]:
    with engines.docker_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def make_containers(
    request: pytest.FixtureRequest, image_archive: Path
) -> Callable[[str, Path], Containers]:
    """Makes the executor of a kind for an agent's folder; its engine has the test's image."""
    ready: set[str] = set()

    def make(kind: str, folder: Path) -> Containers:
        host = None
        if kind == "docker":
            host = request.getfixturevalue("docker_daemon").host
        else:
            request.getfixturevalue("podman_storage")
            engines.require_root()
        if kind == "gvisor":
            engines.require("runsc")
        containers = engines.containers_of(kind, folder, host)
        store = "docker" if kind == "docker" else "podman"
        if store not in ready:
            engines.add_image(containers.engine, image_archive)
            ready.add(store)
        return containers

    return make
