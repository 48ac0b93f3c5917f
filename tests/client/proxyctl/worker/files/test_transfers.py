"""Files of a job between a device and the buyer, over a real daemon."""

import asyncio
import errno
import hashlib
import io
import os
import socket
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.base.cases import cases
from support.base.mounts import small_disk
from support.base.ports import closed_port
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Person, Service
from support.targets.threads import WebTarget
from support.workers.archives import Member, tarred
from support.workers.outward import Dialled, to_loopback, to_nowhere_near

from proxyctl.worker.base import names
from proxyctl.worker.base.link import Link, LinkError, RefusedError
from proxyctl.worker.base.record import Lend
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.executors.base.base import INPUTS, WORK, TaskError
from proxyctl.worker.executors.limits import disk
from proxyctl.worker.files import inputs, transfers, web
from proxyctl.worker.files.inputs import Inputs
from proxyctl.worker.files.room import Room, failure_of
from proxyctl.worker.files.transfers import Checkpoints, FileTransfers, TransferBounds, _opened
from proxyctl.worker.files.web import Web
from proxyctl.worker.task.journal import Entry
from proxyctl.worker.task.patience import Patience

JOB = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}


def never() -> bool:
    return False


class Device:
    """A device that runs a job of a buyer's, and its folder."""

    def __init__(self, service: Service, buyer: Person, token: str, folder: Path) -> None:
        self.service = service
        self.buyer = buyer
        self.folder = folder
        self.token = token
        self.job_id = ""
        self.attempt = 0
        self.link = Link(service.url, token)
        self.web = Web(service.url, token, to_loopback())
        self.given: dict[str, Any] = {}
        self.lend(Lend(disk_gb=1, max_jobs=1))
        self.renew()

    def lend(self, lend: Lend, **bounds: int) -> None:
        self.transfers = FileTransfers(self.link, self.web, lend, TransferBounds(**bounds))

    def renew(self) -> None:
        """Begin with a new folder, as each attempt does."""
        self.folder = self.folder.parent / f"{self.folder.name}x"
        for name in (WORK, INPUTS):
            (self.folder / name).mkdir(parents=True)

    async def accept(self, job_id: str) -> None:
        answer = await self.service.call(
            "POST", f"/api/jobs/{job_id}/accept", headers={"X-Worker-Token": self.token}
        )
        assert answer.status == 200, answer.body
        self.job_id, self.attempt = job_id, answer.body["job"]["attempt"]

    def entry(self, **payload: Any) -> Entry:
        work = {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "payload": {"command": ["true"], **payload},
            **self.given,
        }
        return Entry(work=work, state=AttemptState.PREPARING, boot="")

    async def upload(
        self, is_stopped: Callable[[], bool] = never, seconds: float = 3_600.0, **payload: Any
    ) -> dict[str, Any] | None:
        entry = self.entry(**payload)
        return await asyncio.to_thread(
            self.transfers.upload, entry, self.folder, is_stopped, seconds
        )

    async def fetch(self, is_stopped: Callable[[], bool] = never, **payload: Any) -> None:
        entry = self.entry(**payload)
        patience = Patience(is_stopped=is_stopped)
        await asyncio.to_thread(self.transfers.fetch, entry, self.folder, patience)

    def leave(self, name: str, content: bytes) -> None:
        path = self.folder / WORK / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    async def left(self) -> dict[str, dict[str, Any]]:
        """Return the artifacts that the buyer sees, by name, with the bytes."""
        answer = await self.service.call(
            "GET", f"/api/jobs/{self.job_id}/artifacts", token=self.buyer.token
        )
        rows = reversed(answer.body["artifacts"])  # of one name, the newest
        listed = {each["name"]: each for each in rows if each["is_whole"]}
        for each in listed.values():
            headers = {"Authorization": f"Bearer {self.buyer.token}"}
            async with self.service.http.get(
                f"{self.service.url}/api/artifacts/{each['id']}", headers=headers
            ) as response:
                each["content"] = await response.read()
        return listed


@pytest.fixture
async def device(service: Service, tmp_path: Path) -> AsyncIterator[Device]:
    buyer = await service.person(credit="10")
    answer = await service.call("POST", "/api/jobs", JOB, token=buyer.token)
    token = await worker_token(service, await service.person())
    made = Device(service, buyer, token, tmp_path / "attempt")
    await made.accept(str(answer.body["job_id"]))
    yield made
    made.link.close()


async def give(device: Device, content: bytes, name: str = "data", **more: Any) -> dict[str, Any]:
    """Let the buyer send an input that the job needs. Return the input as the device gets it."""
    service, token = device.service, device.buyer.token
    digest = hashlib.sha256(content).hexdigest()
    body = {"name": name, "size_bytes": len(content), "sha256": digest}
    answer = await service.call("POST", "/api/artifacts", body, token=token)
    artifact_id = answer.body["artifact_id"]
    if "upload" in answer.body:
        sent = await service.call(
            "PUT", answer.body["upload"]["url"], raw=io.BytesIO(content), token=token
        )
        assert sent.status == 200, sent.body
    done = await service.call("POST", f"/api/artifacts/{artifact_id}/done", token=token)
    assert done.status == 200, done.body

    async def need(tx: Any) -> None:
        await tx.run(
            "INSERT INTO job_inputs (job_id, artifact_id) VALUES (:job_id, :artifact_id)",
            job_id=device.job_id,
            artifact_id=artifact_id,
        )

    await service.daemon.store.write(need)
    return {
        "name": name,
        "path": name,
        "artifact_id": artifact_id,
        "sha256": digest,
        "size_bytes": len(content),
        "unpack": False,
        **more,
    }


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


async def test_outputs_arrive_at_the_buyer_and_the_rest_is_reported(device: Device) -> None:
    model = os.urandom(3_000_000)
    device.leave("out/model.bin", model)
    device.leave("out/deep/log.txt", b"log")
    device.leave("not/wanted", b"x")
    (device.folder / WORK / "out" / "passwd").symlink_to("/etc/passwd")
    outputs = [{"name": "model", "path": "out/**"}, {"name": "plots", "path": "*.png"}]
    await device.upload(outputs=outputs)
    left = await device.left()
    assert {name: each["content"] for name, each in left.items()} == {
        "out/model.bin": model,
        "out/deep/log.txt": b"log",
        "left-out.txt": b"out/passwd: it is a link\nplots: nothing in the folder is *.png\n",
    }
    before = device.service.daemon.market.artifacts.traffic.received_bytes
    await device.upload(outputs=outputs)  # the agent was killed before it wrote down the end
    assert device.service.daemon.market.artifacts.traffic.received_bytes == before
    assert len(await device.left()) == 3


async def test_a_job_without_outputs_sends_nothing(device: Device) -> None:
    device.leave("out", b"x")
    await device.upload()
    assert await device.left() == {}


async def test_an_upload_that_broke_off_goes_on_behind_the_arrived_bytes(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(2_000_000)
    device.leave("big", content)
    send, left = web._send, [1_000_000]

    def cut(connection: Any, read: Callable[[int], bytes], size: int) -> None:
        def some(most: int) -> bytes:
            if left[0] <= 0:
                connection.sock.close()
                raise ConnectionError("cut")
            data = read(min(most, left[0]))
            left[0] -= len(data)
            return data

        send(connection, some, size)

    monkeypatch.setattr(web, "_send", cut)
    with pytest.raises(LinkError):
        await device.upload(outputs=[{"name": "x", "path": "big"}])
    assert await device.left() == {}
    monkeypatch.undo()
    traffic = device.service.daemon.market.artifacts.traffic
    await until(lambda: traffic.received_bytes == 1_000_000)
    await device.upload(outputs=[{"name": "x", "path": "big"}])
    assert (await device.left())["big"]["content"] == content
    assert traffic.received_bytes == 2_000_000


async def test_a_lost_attempt_sends_nothing_more(device: Device) -> None:
    device.leave("out", b"x")
    await device.service.call("POST", f"/api/jobs/{device.job_id}/cancel", token=device.buyer.token)
    with pytest.raises(RefusedError) as caught:
        await device.upload(outputs=[{"name": "x", "path": "out"}])
    assert caught.value.is_gone
    assert await device.left() == {}


async def test_one_file_without_room_does_not_hold_up_the_others(device: Device) -> None:
    artifacts = device.service.daemon.market.artifacts
    artifacts.terms = type(artifacts.terms)(file_bytes=1_000)
    device.leave("out/a-large", bytes(1_001))
    device.leave("out/small", b"small")
    await device.upload(outputs=[{"name": "x", "path": "out"}])
    left = await device.left()
    assert left.keys() == {"out/small", "left-out.txt"}
    assert b"out/a-large: the marketplace does not take it" in left["left-out.txt"]["content"]


async def test_a_file_that_is_deleted_while_it_is_sent_does_not_fail_the_work(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the buyer has the first outputs for nothing, and the device is blamed."""
    send, loop = web._send, asyncio.get_running_loop()

    async def forget_unfinished(tx: Any) -> None:
        await tx.run("DELETE FROM artifacts WHERE content_id IS NULL AND name = 'out/first'")

    def deleted(connection: Any, read: Callable[[int], bytes], size: int) -> None:
        send(connection, read, size)
        if size == len(b"result"):
            writing = device.service.daemon.store.write(forget_unfinished)
            asyncio.run_coroutine_threadsafe(writing, loop).result()

    monkeypatch.setattr(web, "_send", deleted)
    device.leave("out/first", b"result")
    device.leave("out/second", b"2")
    report = await device.upload(outputs=[{"name": "x", "path": "out"}])
    assert report is not None
    assert (report["files"], report["bytes"]) == (1, len(b"result"))
    left = await device.left()
    assert left.keys() == {"out/second", "left-out.txt"}
    assert b"out/first: the marketplace does not take it" in left["left-out.txt"]["content"]


async def test_a_line_too_slow_for_all_outputs_does_not_fail_the_work(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marketplace would take the attempt back unpaid: outputs of holes cost a job nothing."""
    send, seconds = web._send, 1.0

    def slowly(connection: Any, read: Callable[[int], bytes], size: int) -> None:
        def late(most: int) -> bytes:
            data = read(most)
            if size == len(b"large"):
                time.sleep(2 * seconds)
            return data

        send(connection, late, size)

    monkeypatch.setattr(web, "_send", slowly)
    monkeypatch.setattr(web, "PIECE_BYTES", 1)
    for name, content in (("a", b"1"), ("b", b"large"), ("c", b"3")):
        device.leave(f"out/{name}", content)
    report = await device.upload(seconds=seconds, outputs=[{"name": "x", "path": "out"}])
    left = await device.left()
    assert left.keys() == {"out/a", "left-out.txt"}
    assert report is not None
    assert (report["files"], report["bytes"]) == (2, len(b"large3"))
    assert report["reasons"] == [
        f"out/{name}: there is no time left to send it" for name in ("b", "c")
    ]


async def test_outputs_beyond_the_bounds_are_named_in_a_file_and_in_the_report(
    device: Device,
) -> None:
    artifacts = device.service.daemon.market.artifacts
    artifacts.terms = type(artifacts.terms)(job_files=2)
    for name in ("a", "b", "c", "d"):
        device.leave(f"out/{name}", b"12345")
    device.leave("out/left-out.txt", b"of the job")
    device.leave("out/C:evil", b"1")
    device.leave("left-out.txt", b"of the job")
    outputs = [{"name": "x", "path": "out"}, {"name": "y", "path": "left-out.txt"}]
    told = await device.upload(outputs=outputs)
    left = await device.left()
    assert left.keys() == {"out/a", "out/b", "left-out.txt"}
    assert told is not None
    assert (told["files"], told["bytes"]) == (5, 10 + 10 + 1 + 10)
    lines = left["left-out.txt"]["content"].decode().splitlines()
    assert lines == told["reasons"]
    assert [each.partition(":")[0] for each in lines] == [
        "left-out.txt",
        "out/C",
        "out/c",
        "out/d",
        "out/left-out.txt",
    ]


async def test_inputs_are_there_read_only_and_unpacked_on_request(device: Device) -> None:
    data = os.urandom(2_000_000)
    device.given["inputs"] = [
        await give(device, data, "in/data.bin"),
        await give(device, archive(a=b"a", b=b"b"), "code", unpack=True),
    ]
    await device.fetch()
    folder = device.folder / INPUTS
    assert (folder / "in/data.bin").read_bytes() == data
    assert (folder / "in/data.bin").stat().st_mode & 0o777 == 0o444
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["a", "b"]
    assert sorted(path.name for path in folder.iterdir()) == ["code", "in"]
    sent = device.service.http
    assert sent
    device.web = Web("http://127.0.0.1:1", "x", to_loopback())  # nothing is fetched again
    device.lend(Lend())
    await device.fetch()


async def test_an_input_that_broke_off_goes_on(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2_000_000)
    given = await give(device, data)
    device.given["inputs"] = [given]
    part = device.folder / inputs.FETCHED / given["sha256"]
    part.parent.mkdir()
    part.write_bytes(data[:1_500_000])
    offsets: list[int] = []
    asked = web._asked

    def counted(connection: Any, sock: Any, target: str, own: Any, offset: int, *more: Any) -> Any:
        offsets.append(offset)
        return asked(connection, sock, target, own, offset, *more)

    monkeypatch.setattr(web, "_asked", counted)
    await device.fetch()
    assert (device.folder / INPUTS / "data").read_bytes() == data
    assert offsets == [1_500_000]


async def test_an_input_with_wrong_content_is_the_jobs_end(device: Device) -> None:
    good = await give(device, b"content")
    bad = archive(**{"../../out": b"x"})
    for changes, words in (
        ({"sha256": "0" * 64}, "its SHA-256 is"),
        ({"size_bytes": 3}, "more than 3 bytes"),
        ({"path": "../out"}, "its path cannot be used"),
        ({"path": "/etc/x"}, "its path cannot be used"),
        ({"sha256": "/../../../../../home/.bashrc"}, "its SHA-256 is malformed"),
        (await give(device, bad, "bad", unpack=True), "leads out of its folder"),
        (await give(device, b"no archive", "none", unpack=True), "no archive"),
    ):
        device.renew()
        device.given["inputs"] = [{**good, **changes}]
        with pytest.raises(TaskError, match=words) as caught:
            await device.fetch()
        assert caught.value.kind == "input"
        assert not (device.folder / INPUTS / "data").exists()


def linked(*members: tuple[str, str]) -> bytes:
    """Return an archive of links: name and target of each."""
    return tarred(Member("link", name, target) for name, target in members)


def behind(levels: int, name: str, target: str) -> bytes:
    """Return an archive with a link `levels` folders above it, by way of two other links.

    Judged by its name, each of the three leads to a place inside.
    """
    return linked(
        ("a/b/c/d/e", "../../../.."),
        ("a/b/c/d/e/t", "/".join([".."] * levels)),
        (f"a/b/c/d/e/t/{name}", target),
    )


def owners_home(device: Device) -> Path:
    """Return a folder beside those of attempts, with files that no stranger may touch."""
    home = device.folder.parent / "home"
    home.mkdir(exist_ok=True)
    for name in ("important.txt", ".bashrc"):
        (home / name).write_text("mine")
    return home


async def test_an_archive_cannot_have_the_next_input_written_elsewhere(device: Device) -> None:
    """It once planted a link in the place where the next input was fetched to."""
    home = owners_home(device)
    second = b"written by a job"
    digest = hashlib.sha256(second).hexdigest()
    following = await give(device, second, "b")
    for name in (f".part-{digest}", digest):
        device.renew()
        hostile = behind(1, name, "../../home/.bashrc")
        device.given["inputs"] = [await give(device, hostile, "a", unpack=True), following]
        with pytest.raises(TaskError) as caught:
            await device.fetch()
        assert caught.value.kind == "input"
        assert (home / ".bashrc").read_text() == "mine"
        assert not (home / ".bashrc").is_symlink()


async def test_an_archive_removes_and_makes_nothing_in_the_owners_home(device: Device) -> None:
    home = owners_home(device)
    # Three levels above an archive is the folder with the owner's home.
    names = ("important.txt", ".bashrc", ".config/autostart/x.desktop")
    levels_and_names = [(3, each) for each in names]
    levels_and_names += [(levels, ".bashrc") for levels in (1, 2, 4, 5)]
    for levels, name in levels_and_names:
        device.renew()
        hostile = behind(levels, f"home/{name}", "nothing")
        device.given["inputs"] = [await give(device, hostile, "a", unpack=True)]
        with pytest.raises(TaskError, match="is behind a link") as caught:
            await device.fetch()
        assert caught.value.kind == "input"
        assert sorted(each.name for each in home.iterdir()) == [".bashrc", "important.txt"]
        assert not (home / name).is_symlink()
    assert [each.read_text() for each in home.iterdir()] == ["mine", "mine"]


async def test_inputs_beside_an_archive_are_not_put_behind_its_links(device: Device) -> None:
    """The marketplace refuses such a job. The device does not rely on that."""
    home = owners_home(device)
    given = [
        await give(device, linked(("up", "x"), ("x", "y")), "a", unpack=True),
        await give(device, b"content", "b", path="a/up/b"),
    ]
    (device.folder / INPUTS / "c").symlink_to(home)
    for inputs_given in (given[:2], [given[0], {**given[0], "name": "again"}]):
        device.given["inputs"] = inputs_given
        with pytest.raises(TaskError, match="the inputs cannot be used") as caught:
            await device.fetch()
        assert caught.value.kind == "input"
    for path in ("c", "c/important.txt", "c/new"):
        device.given["inputs"] = [{**given[1], "path": path}]
        with pytest.raises(TaskError, match="its path is taken by another"):
            await device.fetch()
    assert sorted(each.name for each in home.iterdir()) == [".bashrc", "important.txt"]


async def test_an_input_that_is_complete_and_read_only_is_fetched_again(device: Device) -> None:
    """The agent was killed between the last byte and the move."""
    given = await give(device, b"content")
    device.given["inputs"] = [given]
    part = device.folder / inputs.FETCHED / given["sha256"]
    part.parent.mkdir()
    part.write_bytes(b"content")
    part.chmod(0)
    await device.fetch()
    assert (device.folder / INPUTS / "data").read_bytes() == b"content"
    assert (device.folder / INPUTS / "data").stat().st_mode & 0o777 == 0o444


async def test_whole_inputs_that_a_killed_agent_has_left_are_removed(device: Device) -> None:
    device.given["inputs"] = [await give(device, archive(a=b"a"), "code", unpack=True)]
    await device.fetch()
    left = device.folder / inputs.FETCHED / device.given["inputs"][0]["sha256"]
    left.write_bytes(b"killed before this was removed")
    await device.fetch()
    assert not left.exists()
    device.given["inputs"] = [{**device.given["inputs"][0], "unpack": False}]
    with pytest.raises(TaskError, match="taken by another file"):
        await device.fetch()


async def test_unpacked_inputs_count_after_a_restart(device: Device) -> None:
    device.given["resources"] = {"disk_gb": 0.000_1}
    given = [
        await give(device, archive(a=bytes(60_000)), "code", unpack=True),
        await give(device, bytes(60_001), "two"),
    ]
    device.given["inputs"] = given[:1]
    await device.fetch()
    device.given["inputs"] = given
    with pytest.raises(TaskError, match="more than") as caught:
        await device.fetch()
    assert caught.value.kind == "input"


async def test_a_path_has_a_bound_of_folders(device: Device) -> None:
    path = "/".join(["d"] * 101)
    device.given["inputs"] = [await give(device, b"content", path=path)]
    with pytest.raises(TaskError, match="more than 100 folders deep") as caught:
        await device.fetch()
    assert caught.value.kind == "input"


@pytest.mark.parametrize("resources", [{"disk_gb": 0.000_1}, {}], ids=["wanted", "lent"])
async def test_inputs_have_no_more_than_the_disk_of_the_attempt(
    device: Device, resources: dict[str, Any]
) -> None:
    """A job without `disk_gb` has its share of the lent disk."""
    device.lend(Lend(disk_gb=0.000_4, max_jobs=4))
    device.given["resources"] = resources
    two = [await give(device, bytes(60_000), "one"), await give(device, bytes(60_001), "two")]
    bomb = await give(device, archive(a=bytes(10_000_000)), unpack=True)
    many = await give(device, archive(**{str(each): b"x" for each in range(500)}), unpack=True)
    for given in (two, [bomb], [many], [await give(device, bytes(100_001))]):
        device.renew()
        device.given["inputs"] = given
        with pytest.raises(TaskError, match="more than") as caught:
            await device.fetch()
        assert caught.value.kind == "input"
        assert disk.measure(device.folder, 1 << 30) < 120_000


@pytest.fixture
def small(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk with 24 MiB more than its reserve, with the folder of the device on it."""
    monkeypatch.setattr(disk, "RESERVE_BYTES", 40 << 20)
    with small_disk(tmp_path / "disk", 64) as place:
        device.folder = place / "attempt"
        device.renew()
        yield place


@pytest.mark.parametrize(
    ("lent_gb", "kind"), [(0.01, "input"), (1.0, "refused")], ids=["too-large", "no-room"]
)
async def test_inputs_leave_the_reserve_of_the_disk_alone(
    device: Device, small: Path, target: WebTarget, lent_gb: float, kind: str
) -> None:
    """A device that lends more than it has refuses, and no input has it fail."""
    device.lend(Lend(disk_gb=lent_gb, max_jobs=1))
    size = 50_000_000
    base = f"http://127.0.0.1:{target.port}"
    least = free = disk.free_bytes(small)
    check = Room.check

    def looking(room: Room) -> None:
        nonlocal least
        least = min(least, disk.free_bytes(small))
        check(room)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Room, "check", looking)
        for given, most in (
            (from_others(f"{base}/bytes/{size}", b"another"), 1 << 20),  # a look at each piece
            # Ten looks a second: a disk in memory takes all of the archive between two of them.
            (await give(device, archive(a=bytes(size)), "a", unpack=True), size),
        ):
            device.renew()
            device.given["inputs"] = [given]
            with pytest.raises(TaskError) as caught:
                await device.fetch()
            assert caught.value.kind == kind
            assert least > disk.RESERVE_BYTES - most
    assert disk.free_bytes(small) > free - (1 << 20)  # nothing is left on the disk


@cases(
    ("number", "kind"),
    [
        (errno.ENOSPC, "refused"),
        (errno.EDQUOT, "refused"),
        (errno.EIO, "host"),
        (errno.EROFS, "host"),
        (errno.EMFILE, "host"),
        (errno.ENAMETOOLONG, "input"),
        (errno.EEXIST, "input"),
    ],
)
def test_only_errors_of_the_disk_are_the_devices(number: int, kind: str) -> None:
    error = OSError(number, "words")
    assert failure_of(error, "an input", "input").kind == kind


@pytest.fixture
async def target() -> AsyncIterator[WebTarget]:
    server = WebTarget()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    await asyncio.to_thread(server.shutdown)
    server.server_close()
    thread.join()


def from_others(url: str, content: bytes, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"name": "x", "path": "x", "url": url, "sha256": digest, "unpack": False, **more}


async def test_an_input_elsewhere_is_fetched_without_our_token(
    device: Device, target: WebTarget
) -> None:
    target.pages["/file"] = b"page"
    url = f"http://127.0.0.1:{target.port}/file"
    device.given["inputs"] = [from_others(url, b"page")]
    await device.fetch()
    assert (device.folder / INPUTS / "x").read_bytes() == b"page"
    assert target.asked
    assert device.token not in str(target.asked)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/file",
        "http://localhost:{port}/file",
        "http://[::ffff:127.0.0.1]:{port}/file",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "{api}/api/worker/jobs",  # the device itself may request this
    ],
)
async def test_no_address_of_the_owners_own_network_is_requested(
    device: Device, target: WebTarget, url: str
) -> None:
    device.web = Web(device.service.url, device.token, to_nowhere_near())
    device.lend(Lend())
    named = url.format(port=target.port, api=device.service.url)
    device.given["inputs"] = [from_others(named, b"page")]
    with pytest.raises(TaskError, match="the file at its address could not be fetched"):
        await device.fetch()
    assert target.asked == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://", "http://a b/", "gopher://x"]
)
async def test_other_addresses_are_refused(device: Device, url: str) -> None:
    device.given["inputs"] = [from_others(url, b"x")]
    with pytest.raises(TaskError, match="not one with http or https"):
        await device.fetch()


async def test_the_answer_of_an_address_is_not_for_the_buyer(
    device: Device, target: WebTarget, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a status, nor a hash, nor an error of the network: the owner's log has them."""
    caplog.set_level("INFO", "worker")
    target.pages["/other"] = b"another file"
    with closed_port() as closed:
        base = f"http://127.0.0.1:{target.port}"
        told: dict[str, str] = {}
        for url in (
            f"{base}/missing", f"http://127.0.0.1:{closed}/x", "http://10.0.0.1/x",
            "http://localhost/x", "http://name.invalid/x", f"https://127.0.0.1:{target.port}/",
            f"{base}/other",
        ):  # fmt: skip
            device.renew()
            device.given["inputs"] = [from_others(url, b"page")]
            with pytest.raises(TaskError) as caught:
                await device.fetch()
            assert caught.value.kind == "input"
            told[url] = caught.value.message
    other = told.pop(f"{base}/other")
    assert set(told.values()) == {"the input x: the file at its address could not be fetched"}
    digest = hashlib.sha256(b"another file").hexdigest()
    assert "the file at its address is not the one with this SHA-256" in other
    assert digest not in other
    for detail in (digest, "the answer is 404", "refused", "strangers may"):
        assert detail in caplog.text


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Answer every request with the same bytes; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as sock, suppress(OSError):
                        sock.recv(4096)
                        sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("x", b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"),
        ("x", b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcdefgh"),
        ("x", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcdefgh"),
        ("x", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        ("x", b"HTTP/1.0 404 No\r\n\r\n" + bytes(100_000)),
        ("x", b"HTTP/1.0 200 OK\r\n\r\n" + bytes(2 << 20)),
        ("\u00fc", b""),
    ],
)
async def test_no_answer_of_a_stranger_is_a_fault_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, answer: bytes
) -> None:
    """No answer keeps a connection open, even while a caller keeps the error."""
    (tmp_path / INPUTS).mkdir()
    outward = to_loopback()
    dialled = Dialled(outward.dial)
    monkeypatch.setattr(outward, "dial", dialled)
    web = Web("http://127.0.0.1:9", "token", outward)
    given = Inputs(web, tmp_path, room=Room(tmp_path, 1 << 20), patience=Patience())
    with answering(answer) as port, pytest.raises(TaskError) as caught:
        await asyncio.to_thread(
            given.fetch, [from_others(f"http://127.0.0.1:{port}/{path}", b"page")]
        )
    assert caught.value.kind == "input"
    assert dialled.left_open() == []


async def test_a_mistake_while_inputs_are_fetched_is_of_the_inputs(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(device.web, "get", fail)
    device.given["inputs"] = [from_others("http://127.0.0.1/x", b"page")]
    with pytest.raises(TaskError) as caught:
        await device.fetch()
    assert caught.value.kind == "input"


async def test_an_upload_that_is_no_longer_wanted_is_left_alone(device: Device) -> None:
    device.given["inputs"] = [await give(device, b"content")]
    await device.fetch(is_stopped=lambda: True)
    assert list((device.folder / INPUTS).iterdir()) == []
    device.leave("out", b"x")
    with pytest.raises(LinkError):
        await device.upload(is_stopped=lambda: True, outputs=[{"name": "x", "path": "out"}])
    assert await device.left() == {}


async def checkpointed(device: Device, until_there: Callable[[], Awaitable[bool]]) -> None:
    """Let a job run until a checkpoint of it is there."""
    entry = device.entry(checkpoint={"path": "ckpt", "every_s": 10})
    checkpoints = device.transfers.begin_checkpoints(entry, device.folder)
    assert checkpoints is not None
    await until(until_there)
    await asyncio.to_thread(checkpoints.close)


async def test_the_next_attempt_goes_on_from_the_newest_checkpoint(
    device: Device, often: None
) -> None:
    assert device.transfers.begin_checkpoints(device.entry(), device.folder) is None
    device.leave("ckpt/epoch", b"1")
    device.leave("ckpt/weights/w", os.urandom(1_000_000))

    async def is_there(content: bytes) -> bool:
        left = await device.left()
        sent = left.get("checkpoint.tar")
        return sent is not None and content in sent["content"]

    await checkpointed(device, lambda: is_there(b"1"))
    device.leave("ckpt/epoch", b"second")
    await checkpointed(device, lambda: is_there(b"second"))
    weights = (device.folder / WORK / "ckpt/weights/w").read_bytes()
    assert not (device.folder / "checkpoint.tar").exists()
    failed = await device.service.call(
        "POST",
        f"/api/worker/jobs/{device.job_id}/fail",
        {"reason": "power"},
        headers={"X-Worker-Token": device.token},
    )
    assert failed.status == 200
    token = await worker_token(device.service, await device.service.person())
    following = Device(device.service, device.buyer, token, device.folder.parent / "second")
    await following.accept(device.job_id)
    newest = (await device.left())["checkpoint.tar"]
    following.given["checkpoint"] = {
        "artifact_id": newest["id"],
        "sha256": newest["sha256"],
        "size_bytes": newest["size_bytes"],
    }
    await following.fetch(checkpoint={"path": "ckpt", "every_s": 10})
    work = following.folder / WORK
    assert (work / "ckpt/epoch").read_bytes() == b"second"
    assert (work / "ckpt/weights/w").read_bytes() == weights
    (work / "ckpt/epoch").write_bytes(b"third")  # it is the job's own
    assert sorted(path.name for path in following.folder.iterdir()) == [INPUTS, WORK]
    await following.fetch(checkpoint={"path": "ckpt", "every_s": 10})
    assert (work / "ckpt/epoch").read_bytes() == b"third"
    following.link.close()


begin = Checkpoints.__init__


def _often(self: Any, attempt_id: str, every_s: float, send: Any, note: Any, _: int) -> None:
    """Begin as `Checkpoints` does, with a small part of the pause, over a fast line."""
    begin(self, attempt_id, every_s / 200, send, note, 1 << 40)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers.Checkpoints, "__init__", _often)


async def test_a_link_among_checkpoints_is_left_out_and_the_buyer_reads_why(
    device: Device, often: None
) -> None:
    """Many programs keep one to the newest of their checkpoints."""
    log = device.folder / names.LOGS["err"]
    log.write_bytes(b"epoch 1\n")
    device.leave("ckpt/step-100/weights", b"weights")
    (device.folder / WORK / "ckpt" / "latest").symlink_to("step-100")

    async def is_there() -> bool:
        return "checkpoint.tar" in await device.left() and b"latest" in log.read_bytes()

    await checkpointed(device, is_there)
    assert log.read_text() == (
        "epoch 1\nproxyctl: left out of the checkpoint: ckpt/latest: it is a link\n"
    )
    sent = (await device.left())["checkpoint.tar"]["content"]
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        assert tar.getnames() == ["ckpt/step-100/weights"]


async def test_a_part_of_a_checkpoint_is_not_sent_however_much_is_left_out(
    device: Device, often: None
) -> None:
    """There are more links than `left_out` has room for, and more names than the search takes."""
    device.lend(Lend(disk_gb=1, max_jobs=1), names_max=250)
    log = device.folder / names.LOGS["err"]
    log.touch()
    for number in range(30):
        device.leave(f"ckpt/{number}", b"x")
    for number in range(240):
        (device.folder / WORK / "ckpt" / f"link{number}").symlink_to("0")

    async def is_noted() -> bool:
        return b"no checkpoint this time" in log.read_bytes()

    await checkpointed(device, is_noted)
    assert "checkpoint.tar" not in await device.left()


async def test_a_checkpoint_takes_no_disk_and_has_the_size_that_the_job_may_have(
    device: Device, often: None
) -> None:
    """Holes of a file cost a job nothing; they may not cost the owner's disk and line."""
    log = device.folder / names.LOGS["err"]
    log.touch()
    device.lend(Lend(disk_gb=0.02, max_jobs=1))
    device.leave("ckpt/sparse", b"")
    os.truncate(device.folder / WORK / "ckpt" / "sparse", 21_000_000)

    async def is_noted() -> bool:
        return b"more than its 20000000" in log.read_bytes()

    await checkpointed(device, is_noted)
    assert "checkpoint.tar" not in await device.left()
    os.truncate(device.folder / WORK / "ckpt" / "sparse", 19_000_000)
    before = disk.measure(device.folder, 1 << 40)
    most = 0

    async def is_there() -> bool:
        nonlocal most
        most = max(most, disk.measure(device.folder, 1 << 40))
        return "checkpoint.tar" in await device.left()

    await checkpointed(device, is_there)
    assert most == before


async def test_checkpoints_leave_the_owners_line_to_the_owner(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a large one the next one waits, for longer than the job has asked for."""
    waits: list[float] = []
    closed = threading.Event()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > 3

    monkeypatch.setattr(
        transfers, "threading", SimpleNamespace(Event=lambda: closed, Thread=threading.Thread)
    )
    monkeypatch.setattr(closed, "wait", wait)

    def send(sending: Checkpoints) -> list[str]:
        sending.spend(500_000_000)
        if len(waits) == 2:
            raise LinkError("it broke off")
        return []

    Checkpoints("one", 10, send, lambda _: None, 2_500_000).close()
    assert waits == [10, 200, 200, 200]


async def test_outputs_have_no_more_bytes_than_the_job_may_have(device: Device) -> None:
    device.lend(Lend(disk_gb=0.001, max_jobs=1))
    device.leave("out/a", b"a")
    device.leave("out/sparse", b"")
    os.truncate(device.folder / WORK / "out" / "sparse", 1_000_000)
    await device.upload(outputs=[{"name": "x", "path": "out"}])
    left = await device.left()
    assert left.keys() == {"out/a", "left-out.txt"}
    assert b"out/sparse: the outputs have more bytes" in left["left-out.txt"]["content"]


async def checkpoint_of(device: Device, content: bytes) -> dict[str, Any]:
    """Let an earlier attempt have sent a checkpoint; return it as the device is given it."""
    given = await give(device, content)
    return {key: given[key] for key in ("artifact_id", "sha256", "size_bytes")}


def begun_anew(device: Device) -> str:
    """Check that a job begins without its checkpoint. Return the text of its log."""
    assert list((device.folder / WORK).iterdir()) == []
    log = device.folder / names.LOGS["err"]
    assert sorted(path.name for path in device.folder.iterdir()) == sorted([INPUTS, WORK, log.name])
    said = log.read_text()
    assert said.startswith("proxyctl: the checkpoint is not restored, the job begins anew: ")
    return said


async def test_a_checkpoint_of_other_bytes_or_too_many_does_not_fail_the_job(
    device: Device,
) -> None:
    """Three failures by such devices would end another buyer's job."""
    device.lend(Lend(disk_gb=1, max_jobs=1), checkpoint_max_bytes=100_000)
    hostile = {
        "it is no archive": b"rubbish",
        "its files have more than": archive(**{"ckpt/x": bytes(2_000_000)}),
        "it has more than 100000 bytes": archive(**{"ckpt/x": os.urandom(200_000)}),
    }
    for reason, content in hostile.items():
        device.renew()
        device.given["checkpoint"] = await checkpoint_of(device, content)
        await device.fetch(checkpoint={"path": "ckpt", "every_s": 10})
        assert reason in begun_anew(device)


async def test_a_checkpoint_that_leads_elsewhere_is_not_laid_down(device: Device) -> None:
    hostile = archive(**{"train.py": b"import os"})
    device.given["checkpoint"] = await checkpoint_of(device, hostile)
    await device.fetch(checkpoint={"path": "ckpt", "every_s": 10})
    assert "not where it should be" in begun_anew(device)


async def test_a_checkpoint_of_a_hostile_worker_has_no_links(device: Device) -> None:
    """The next device unpacks the checkpoint that the last one has sent."""
    home = owners_home(device)
    hostile = {
        "one link": linked(("ckpt/latest", "step-100")),
        "behind links": linked(
            ("ckpt/a/b/c/e", "../../.."),
            ("ckpt/a/b/c/e/t", "../../../.."),
            ("ckpt/t/home/important.txt", "gone"),
        ),
    }
    for content in hostile.values():
        device.renew()
        device.given["checkpoint"] = await checkpoint_of(device, content)
        await device.fetch(checkpoint={"path": "ckpt", "every_s": 10})
        assert "links are not accepted here" in begun_anew(device)
    assert (home / "important.txt").read_text() == "mine"
    assert not (home / "important.txt").is_symlink()


@pytest.mark.parametrize(
    "error",
    [
        OverflowError,
        KeyError,
        MemoryError,
        RecursionError,
        UnicodeDecodeError("utf-8", b"", 0, 1, ""),
    ],
    ids=str,
)
async def test_a_checkpoint_that_raises_an_error_of_python_is_not_restored(
    device: Device, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    device.given["checkpoint"] = await checkpoint_of(device, archive(**{"ckpt/x": b"x"}))

    def hostile(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(transfers, "unpack_confined", hostile)
    await device.fetch(checkpoint={"path": "ckpt", "every_s": 10})
    assert (error if isinstance(error, type) else type(error)).__name__ in begun_anew(device)


async def test_a_checkpoint_is_not_put_behind_a_link(device: Device) -> None:
    home = owners_home(device)
    device.given["checkpoint"] = await checkpoint_of(device, archive(**{"a/ckpt/x": b"x"}))
    (device.folder / WORK / "a").symlink_to(home)
    await device.fetch(checkpoint={"path": "a/ckpt", "every_s": 10})
    assert sorted(each.name for each in home.iterdir()) == [".bashrc", "important.txt"]


def test_a_folder_that_its_job_has_closed_is_opened(tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir(mode=0o000)
    with _opened(tmp_path / WORK):
        assert (tmp_path / WORK).stat().st_mode & 0o777 == 0o700
