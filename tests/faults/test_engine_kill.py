"""kill -9 of container engines while jobs run under them: each job has one result, nothing is left.

For the seeds of `make crash-jobs` alone: an engine takes longer to start than all else of it. A
container whose engine, monitor or client is killed is the device's failure, and given away again.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.base.waiting import until_true
from support.database import sqlite
from support.workers import engines
from support.workers.crash_site import LENT, CrashSite, crash_site, until_begun
from support.workers.engines import DockerDaemon
from support.workers.registry import ImageParts, layer_of, liar

from proxyctl.worker.base.record import Sandbox
from proxyctl.worker.base.states import AttemptState

SEED = int(os.environ.get("PROXYD_CRASH_SEED", "0"))
SEEDS = int(os.environ.get("PROXYD_CRASH_KILLS", "0"))
JOBS = 2
FAULTS = 3
FAULT_MAX_SECONDS = 2.0  # from one to the next: a container takes most of a second to start
COMMAND = "echo begun; sleep 1; printf whole >/work/kept; echo done"
# Besides the program itself, all that an engine has for a container.
HELPERS = {
    "podman": (b"conmon", b"podman"),
    "docker": (b"containerd-shim-runc-v2", b"docker"),
}

pytestmark = pytest.mark.skipif(not SEEDS, reason="make crash-jobs")


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Iterator[DockerDaemon | None]:
    """Yield Docker's daemon; None for podman, which has none."""
    engines.require_root()
    if request.param == "podman":
        with engines.podman_storage():
            yield None
        return
    with engines.docker_daemon() as daemon:
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = daemon.host
        try:
            yield daemon
        finally:
            del os.environ["DOCKER_HOST"]
            if before is not None:
                os.environ["DOCKER_HOST"] = before


@pytest.fixture(scope="module")
def shared_site(
    engine: DockerDaemon | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CrashSite]:
    folder = tmp_path_factory.mktemp("site")
    shell = Path("/bin/busybox").resolve().read_bytes()
    with liar() as images:
        images.serve("shell", ImageParts(layer_of({"bin/sh": shell, "bin/sleep": shell})))
        payload = {"image": f"{images.host}/shell", "command": ["/bin/sh", "-c", COMMAND]}
        name = "podman" if engine is None else "docker"
        with crash_site(
            folder,
            sqlite.database(folder),
            sandbox=Sandbox(name, registries=(images.host,)),
            lend=replace(LENT, jobs=("docker",)),
            payload=payload,
        ) as made:
            yield made


@pytest.fixture
def site(shared_site: CrashSite) -> Iterator[CrashSite]:
    """The same for each test, whose agents end with it."""
    yield shared_site
    for agent in shared_site.agents:
        agent.kill_if_started()


@pytest.mark.timeout(120 + 120 * SEEDS)
def test_a_job_in_a_container_has_one_result_after_any_kill(
    site: CrashSite, engine: DockerDaemon | None
) -> None:
    site.agents[0].start()
    for seed in range(SEED, SEED + SEEDS):
        run_seed(site, engine, random.Random(seed))


def test_an_agent_that_is_ended_while_it_tries_its_sandbox_leaves_nothing(
    site: CrashSite, engine: DockerDaemon | None
) -> None:
    agent = site.agents[0]
    agent.start()
    until_true(lambda: "proxyd-trial-" in "".join(containers(engine)), lambda: agent.log)
    assert agent.kill(signal.SIGTERM) == 0
    assert not left(engine)


@pytest.mark.timeout(300)
def test_a_machine_that_was_restarted_in_mid_job_gives_it_back(
    site: CrashSite, engine: DockerDaemon | None
) -> None:
    if engine is None:
        pytest.skip("what podman keeps in /run is not this test's alone")
    agent = site.agents[0]
    agent.start()
    job = site.post(command=["/bin/sh", "-c", COMMAND.replace("sleep 1", "sleep 15")])
    until_begun(site, job)
    agent.lose_power()
    for process in psutil.process_iter(["cmdline"]):  # clients of the engine, and their guards
        if any(str(agent.folder) in word for word in process.info["cmdline"] or ()):
            process.kill()
    engine.lose_power()
    engine.start()
    agent.start()
    site.finish([job])
    first, *_, last = site.last_attempts[job]
    assert (first["kind"], last["outcome"]) == ("host", "completed")
    assert "restarted" in first["reason"]
    until_true(lambda: not left(engine), lambda: f"nothing is left: {left(engine)}")


def run_seed(site: CrashSite, engine: DockerDaemon | None, chance: random.Random) -> None:
    jobs = [site.post() for _ in range(JOBS)]
    done = []
    try:
        for _ in range(FAULTS):
            # Not waiting for a condition: the test needs a random moment.
            time.sleep(chance.uniform(0, FAULT_MAX_SECONDS))
            kind = chance.choice(["helper", "helper", "daemon", "agent"])
            done.append(kind)
            if kind == "agent":
                site.agents[0].kill()
                site.agents[0].start(
                    die_at=chance.choice(["", *(each.value for each in AttemptState)])
                )
            elif kind == "helper" or engine is None:
                kill_helper(engine, chance)
            else:
                engine.kill()
                engine.start()
        site.finish(jobs)
        until_true(lambda: not left(engine), lambda: f"nothing is left: {left(engine)}")
    except BaseException as error:
        error.add_note(f"after {done}")
        raise


def kill_helper(engine: DockerDaemon | None, chance: random.Random) -> None:
    """Kill one of the processes that the engine of this test has for a container of an agent."""
    pids = helpers(engine)
    if pids:
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended


def place(engine: DockerDaemon | None) -> str:
    """Return the folder of the engine, which only this test has."""
    path = os.environ["CONTAINERS_STORAGE_CONF" if engine is None else "DOCKER_HOST"]
    folder = str(Path(path.removeprefix("unix://")).parent)
    assert folder.startswith("/var/tmp/proxyd-"), folder
    return folder


def helpers(engine: DockerDaemon | None) -> list[int]:
    folder = place(engine).encode()
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            has_folder = folder in words + (process / "environ").read_bytes()
        except OSError:
            continue
        name = words.split(b"\0")[0].rpartition(b"/")[2]
        if has_folder and name in HELPERS["podman" if engine is None else "docker"]:
            pids.append(int(process.name))
    return pids


def left(engine: DockerDaemon | None) -> list[str]:
    """Return the remains of containers: in the engine, its runtime, the kernel and the agents."""
    folder = place(engine)
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    states = Path("/run/runc") if engine is None else Path(folder, "exec/runtime-runc/moby")
    return [
        *containers(engine),
        # docker may leave a shim that has no container; the state of a shim shows whether it has a
        # container.
        *(each for each in map(command_of, helpers(engine)) if "containerd-shim" not in each),
        *(each for each in mounts if each.startswith(f"{folder}/") and not is_own(each, folder)),
        *(str(each) for each in states.glob("*/state.json") if folder in each.read_text()),
    ]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has just ended
        return "one that ends"


def is_own(place: str, folder: str) -> bool:
    """Say whether a mount is the engine's own, for as long as that is there.

    docker also keeps the namespace of a container whose shim was killed while it started, which
    belongs to no container any more; it is for docker to remove.
    """
    own = (f"{folder}/graph/overlay", f"{folder}/data")
    return place in own or place.startswith(f"{folder}/exec/netns/")


def containers(engine: DockerDaemon | None) -> list[str]:
    """Return all containers, also those that have ended, and their states."""
    program = "podman" if engine is None else "docker"
    words = (program, "ps", "--all", "--format", "{{.Names}} {{.Status}}")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
