"""proxyctl.worker.attempt.sandboxes: a job with an image of one's own, through a whole agent."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.base.brief import brief
from support.workers import registry
from support.workers.market import WorkerMarket, worker_market
from support.workers.outward import to_nowhere_near
from support.workers.process import WorkerAgent, until, worker_agent
from support.workers.registry import ImageParts, Liar, layer_of

from proxyctl.protocol.jobspec.payload import Payload
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base import names, record
from proxyctl.worker.base.record import Lend, Sandbox
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.engine import call
from proxyctl.worker.images.images import NAME
from proxyctl.worker.task.patience import Patience


@pytest.fixture
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture
def liar() -> Iterator[Liar]:
    with registry.liar() as made:
        yield made


@pytest.fixture(params=brief(["podman", "docker"]))
def containers(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_containers: Callable[[str, Path], Containers],
) -> Containers:
    return make_containers(request.param, tmp_path / "agent")


@pytest.fixture
def agent(
    containers: Containers,
    market: WorkerMarket,
    liar: Liar,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[WorkerAgent]:
    """An agent that takes jobs with images, of the registry of the test."""
    if "DOCKER_HOST" in containers.engine.environment():
        monkeypatch.setenv("DOCKER_HOST", containers.engine.environment()["DOCKER_HOST"])
    with worker_agent(tmp_path / "agent", market) as made:
        path = made.folder / names.CONSENT
        sandbox = Sandbox(executor=containers.name, registries=(liar.host,))
        lend = Lend(jobs=("docker", "script"), cores=1, ram_gb=0.5, disk_gb=1, max_jobs=2)
        record.save(path, replace(record.load(path), lend=lend, sandbox=sandbox))
        yield made
    for each in call(containers.engine, "images", "--format", "{{.Repository}}:{{.Tag}}").split():
        if each.startswith(NAME):
            call(containers.engine, "rmi", "--force", each)


def own_image() -> ImageParts:
    """An image with a shell alone, which must be another one for each test."""
    shell = Path("/bin/busybox").resolve().read_bytes()
    return ImageParts(layer_of({"bin/sh": shell, "word": os.urandom(8).hex().encode()}))


@pytest.mark.long
def test_a_job_with_an_image_of_ones_own_runs_and_survives_its_agent(
    agent: WorkerAgent, market: WorkerMarket, liar: Liar, containers: Containers
) -> None:
    liar.serve("own", own_image())
    image = f"{liar.host}/own"
    agent.start()
    missing = market.post(job_type="docker", payload={"image": f"{liar.host}/missing"})
    waits = "echo begun; while ! test -e /work/go; do sleep 0.1; done; echo ended"
    job = market.post(
        job_type="docker", payload={"image": image, "command": ["/bin/sh", "-c", waits]}
    )
    until(lambda: job.logs.get((1, "out")), agent)
    until(lambda: missing.outcome == "fail", agent)
    assert missing.reports[-1][1]["kind"] == "image"
    assert "there is no" in missing.reports[-1][1]["reason"]
    agent.kill()
    agent.start()
    work = agent.folder / names.ATTEMPTS / f"{job.id}-1" / "work"
    (work / "go").touch()
    until(lambda: job.outcome, agent)
    assert (job.outcome, job.logs[1, "out"]) == ("complete", b"begun\nended\n")
    agent.until_idle()
    left = call(containers.engine, "ps", "--all", "--format", "{{.Names}}")
    assert job.id not in left


@pytest.mark.long
def test_a_container_that_writes_more_than_it_may_is_ended(
    agent: WorkerAgent, market: WorkerMarket, liar: Liar, containers: Containers
) -> None:
    liar.serve("own", own_image())
    agent.start()
    # More files than one, for the kernel bounds each.
    double = "for each in 1 2 3 4 5 6 7 8; do x=$x$x; done"
    fill = f"x=0123456789abcdef; {double}; while :; do n=$((n + 1)); echo $x > /work/$n; done"
    small = {"resources": {"disk_gb": 0.001}}
    payload = {"image": f"{liar.host}/own", "command": ["/bin/sh", "-c", fill]}
    job = market.post(job_type="docker", payload=payload, **small)
    until(lambda: job.outcome, agent)
    said = job.reports[-1][1]
    assert (job.outcome, said["kind"]) == ("fail", "job")
    assert "wrote to the disk" in said["reason"]
    agent.until_idle()
    assert job.id not in call(containers.engine, "ps", "--all", "--format", "{{.Names}}")


@pytest.mark.long
def test_a_cancelled_job_leaves_no_container(
    agent: WorkerAgent, market: WorkerMarket, liar: Liar, containers: Containers
) -> None:
    liar.serve("own", own_image())
    agent.start()
    deaf = ["/bin/sh", "-c", "trap '' TERM; echo begun; while :; do sleep 0.1; done"]
    payload = {"image": f"{liar.host}/own", "command": deaf, "grace_s": 0}
    job = market.post(job_type="docker", payload=payload)
    until(lambda: job.logs.get((1, "out")), agent)
    market.take_back(job)
    agent.until_idle()
    assert job.id not in call(containers.engine, "ps", "--all", "--format", "{{.Names}}")


def test_an_agent_that_fetches_images_has_one_engine(
    containers: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "DOCKER_HOST" in containers.engine.environment():
        monkeypatch.setenv("DOCKER_HOST", containers.engine.environment()["DOCKER_HOST"])
    sandbox = Sandbox(executor=containers.name)
    executors, findings = sandboxes.usable(
        sandbox, Lend(jobs=("docker",)), tmp_path, dial=to_nowhere_near().dial
    )
    assert [*executors] == [*findings] == [containers.name]
    chosen = executors[containers.name]
    with pytest.raises(TaskError, match="cannot be reached on the public internet"):
        sandboxes.fetch_image(chosen, "127.0.0.1:5000/own", Patience())
    assert sandboxes.fetch_image(chosen, "", Patience()) is None
    chosen.close()


def test_a_job_goes_where_it_can_run(
    tmp_path: Path, make_containers: Callable[[str, Path], Containers]
) -> None:
    podman = make_containers("podman", tmp_path)
    assert sandboxes.executor_for({"podman": podman}, Payload(image="debian")) is podman
    with pytest.raises(TaskError, match="the image debian"):
        sandboxes.executor_for({}, Payload(image="debian"))
    with pytest.raises(TaskError, match="without an image"):
        sandboxes.executor_for({"podman": podman}, Payload(command=("true",)))
