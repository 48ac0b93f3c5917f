"""Files of a job, all the way: from its buyer into a sandbox on a device, and back."""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Person, Service
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox

from proxyctl.worker.base.record import Lend

SCRIPT = """
import os, pathlib
words = pathlib.Path("/inputs/words.txt").read_text().split()
numbers = pathlib.Path("/inputs/numbers/data/n.txt").read_text().split()
for place in ("/inputs/words.txt", "/inputs/numbers/data/n.txt", "/inputs/new"):
    try:
        open(place, "w")
    except OSError:
        continue
    raise SystemExit(f"{place} can be written")
out = pathlib.Path("/work/out")
out.mkdir()
(out / "sum").write_text(str(sum(map(int, numbers))))
(out / "count").write_text(str(len(words)))
(out / "passwd").symlink_to("/etc/passwd")
os.mkfifo(out / "pipe")
"""


@pytest.fixture
async def agent(service: Service, tmp_path: Path) -> AsyncIterator[WorkerAgent]:
    require_sandbox(tmp_path)
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    nobody = cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={}))
    made = WorkerAgent(folder, nobody)
    lend = Lend(cores=1, ram_gb=0.5, disk_gb=1, max_jobs=1)
    made.agree(service.url, lend, await worker_token(service, await service.person()))
    made.start()
    yield made
    await asyncio.to_thread(made.close)


async def upload(service: Service, buyer: Person, name: str, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    body = {"name": name, "size_bytes": len(content), "sha256": digest}
    answer = await service.call("POST", "/api/artifacts", body, token=buyer.token)
    url = answer.body["upload"]["url"]
    sent = await service.call("PUT", url, raw=io.BytesIO(content), token=buyer.token)  # type: ignore[arg-type]
    assert sent.status == 200
    done = await service.call("POST", url.replace("/content", "/done"), token=buyer.token)
    assert done.status == 200
    return str(answer.body["artifact_id"])


async def download(service: Service, buyer: Person, artifact_id: str) -> bytes:
    headers = {"Authorization": f"Bearer {buyer.token}"}
    url = f"{service.url}/api/artifacts/{artifact_id}"
    async with service.http.get(url, headers=headers) as response:
        assert response.status == 200
        return await response.read()


def packed(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


async def test_files_go_into_the_sandbox_and_come_back(
    service: Service, agent: WorkerAgent
) -> None:
    buyer = await service.person(credit="10")
    words = await upload(service, buyer, "words.txt", b"three little words")
    numbers = await upload(service, buyer, "numbers.tar.gz", packed("data/n.txt", b"20 22"))
    payload = {
        "script": SCRIPT,
        "inputs": [
            {"name": "words.txt", "artifact_id": words},
            {"name": "numbers", "artifact_id": numbers, "unpack": True},
        ],
        "outputs": [{"name": "results", "path": "out/**"}],
    }
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", {**job, "payload": payload}, token=buyer.token)
    path = f"/api/jobs/{answer.body['job_id']}"
    shown: dict[str, Any] = {}

    async def is_over() -> bool:
        shown.update((await service.call("GET", path, token=buyer.token)).body["job"])
        return shown["status"] not in ("waiting", "running")

    await until(is_over, f"the job is over: {agent.log}", seconds=60)
    assert shown["status"] == "completed", (shown, agent.log)
    listed = (await service.call("GET", f"{path}/artifacts", token=buyer.token)).body["artifacts"]
    left = {each["name"]: await download(service, buyer, each["id"]) for each in listed}
    assert left == {
        "out/sum": b"42",
        "out/count": b"3",
        "left-out.txt": b"out/passwd: it is a link\nout/pipe: it is a named pipe\n",
    }
