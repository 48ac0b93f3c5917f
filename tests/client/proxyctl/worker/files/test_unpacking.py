"""Archives are unpacked by a process that is confined, bounded, and not believed further."""

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.mounts import small_disk
from support.base.pythons import CLIENT, NEWEST, OLDEST, pythons
from support.base.waiting import until
from support.workers.archives import Member, tarred

from proxyctl.worker.base.programs import python
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.base.family import children, is_alive
from proxyctl.worker.executors.limits import disk
from proxyctl.worker.files import unpacking
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions
from proxyctl.worker.files.room import NoRoomError, Room
from proxyctl.worker.files.unpacking import USUAL, UnpackTimes, check, unpack_confined

UID = 1_900_000_007
OPTIONS = UnpackOptions(max_bytes=1 << 20)
ORDINARY = tarred(
    [Member("file", "a/b"), Member("link", "a/l", "b"), Member("hard", "c", "a/b")],
)


def never() -> bool:
    return False


def unpacked(
    folder: Path,
    content: bytes,
    options: UnpackOptions = OPTIONS,
    is_stopped: Callable[[], bool] = never,
    check_room: Callable[[], None] = lambda: None,
    times: UnpackTimes = USUAL,
) -> int:
    archive, into = folder / "archive", folder / "into"
    archive.write_bytes(content)
    return unpack_confined(
        archive, into, options, user=UID, is_stopped=is_stopped, check=check_room, times=times
    )


def processes(parent: int | None = None) -> list[int]:
    """Return the processes that unpack for a process, or for this one."""
    mark = b"proxyctl.worker.files.unpacker"
    found = []
    for pid in children(parent or os.getpid()):
        with suppress(FileNotFoundError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def slow_archive() -> bytes:
    """Return an archive that takes seconds."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(30_000):
            archive.writestr(str(number), b"")
    return buffer.getvalue()


def says(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program be the process that unpacks."""
    monkeypatch.setattr(unpacking, "python", lambda _: (sys.executable, "-c", program))


@pytest.mark.parametrize("press", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_is_unpacked_and_belongs_to_the_agent(
    tmp_path: Path, press: Callable[[bytes], bytes]
) -> None:
    assert unpacked(tmp_path, press(ORDINARY)) == 2 * len(b"content")
    into = tmp_path / "into"
    assert (into / "a" / "l").read_bytes() == (into / "c").read_bytes() == b"content"
    for path in (into, *into.rglob("*")):
        assert path.lstat().st_uid == os.geteuid()


def test_a_refusal_is_the_archives_and_leaves_nothing(tmp_path: Path) -> None:
    for content, words in (
        (tarred([Member("file", "../a")]), "leads out of its folder"),
        (tarred([Member("file", "a"), Member("file", "a/b")]), "a name that cannot be"),
        (b"no archive", "no archive"),
    ):
        with pytest.raises(ArchiveError, match=words):
            unpacked(tmp_path, content)
        assert [each.name for each in tmp_path.iterdir()] == ["archive"]


async def test_an_archive_that_is_not_wanted_any_more_ends_its_process(tmp_path: Path) -> None:
    asked = []

    def is_stopped() -> bool:
        asked.append(len(processes()))
        return len(asked) > 1

    with pytest.raises(ArchiveError, match="it was cancelled"):
        unpacked(tmp_path, slow_archive(), is_stopped=is_stopped)
    assert asked[0] == 1
    await until(lambda: not processes())
    assert not (tmp_path / "into").exists()


def test_a_full_disk_is_the_devices(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2) as small:
        large = tarfile.TarInfo("large")
        large.size = 8 << 20
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            tar.addfile(large, io.BytesIO(bytes(large.size)))
        with pytest.raises(OSError, match="No space left") as caught:
            unpacked(small, buffer.getvalue(), UnpackOptions(max_bytes=16 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert [each.name for each in small.iterdir()] == ["archive"]


FLOOD = (
    "import json, os, sys; os.write(1, b'{\"walls\": {}}\\n');"
    "folder = json.loads(sys.argv[1])['folder'];"
    "files = [os.open(str(n), os.O_CREAT | os.O_WRONLY, dir_fd=folder) for n in range(9)];"
    "[os.write(each, bytes(1 << 20)) for _ in range(100_000) for each in files]"
)


@pytest.mark.parametrize(
    ("max_bytes", "error", "words"),
    [(4 << 20, ArchiveError, "takes more than 4194304 bytes"), (1 << 40, NoRoomError, None)],
)
def test_a_process_that_an_archive_has_taken_over_does_not_fill_the_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_bytes: int,
    error: type[Exception],
    words: str | None,
) -> None:
    """It keeps to no bound of its own. The archive is at fault for more than it may have."""
    says(monkeypatch, FLOOD)
    times = UnpackTimes(look_seconds=0.005)
    with small_disk(tmp_path / "disk", 512) as folder:
        monkeypatch.setattr(disk, "RESERVE_BYTES", 448 << 20)
        room = Room(folder, max_bytes)
        with pytest.raises(error, match=words):
            unpacked(folder, ORDINARY, UnpackOptions(max_bytes), never, room.check, times)
        assert [each.name for each in folder.iterdir()] == ["archive"]
        assert disk.free_bytes(folder) > 448 << 20


WALLS = "import os, sys; say = lambda t: os.write(1, t.encode() + b'\\n'); say('{\"walls\": {}}');"


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("pass", OSError, "ended early"),
        ("print('{\"failed\": 28}')", OSError, "ended early"),
        ("print('{\"done\": true}')", OSError, "ended early"),
        ("print('[1]')", OSError, "ended early"),
        ("print('[' * 60_000)", OSError, "ended early"),
        ("print('x' * 10_000_000)", OSError, "ended early"),
        ('print(\'{"unconfined": "no wall"}\')', TaskError, "safely: no wall"),
        (f'{WALLS} say(\'{{"unconfined": "no wall"}}\')', ArchiveError, "no answer"),
        (f"{WALLS} say('{{\"failed\": 5}}')", OSError, "Input/output error"),
        (f"{WALLS} say('{{\"failed\": 28}}')", ArchiveError, "has failed"),  # there is room
        (f"{WALLS} say('{{\"failed\": 13}}')", ArchiveError, "has failed"),
        (f"{WALLS} say('{{\"failed\": 2}}')", ArchiveError, "has failed"),
        (f"{WALLS} say('{{\"failed\": true}}')", ArchiveError, "has failed"),
        (f"{WALLS} say('{{\"failed\": ' + '9' * 400 + '}}')", ArchiveError, "has failed"),
        (f"{WALLS} say('[' * 60_000)", ArchiveError, "no answer"),
        (f"{WALLS} os.kill(os.getpid(), 9)", ArchiveError, "signal 9 at the end"),
        (f"{WALLS} os.kill(os.getpid(), 11)", ArchiveError, "signal 11 at the end"),
        (f"{WALLS} os.kill(os.getpid(), 25)", ArchiveError, "no answer|signal 25 at the end"),
        (f"{WALLS} os.kill(os.getpid(), 15)", OSError, "signal 15 has ended the process"),
        (f"{WALLS} os.close(1); os.read(0, 1); import time; time.sleep(60)", ArchiveError, "end"),
        (f"{WALLS} say('{{\"refused\": \"\\\\u001b[2J' + 'x' * 999 + '\"}}')", ArchiveError, "x…$"),
    ],
)
def test_the_report_of_that_process_is_checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    error: type[Exception],
    words: str | None,
) -> None:
    says(monkeypatch, program)
    with pytest.raises(error, match=words) as caught:
        unpacked(tmp_path, ORDINARY)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "into").exists()


def test_a_process_that_a_signal_from_outside_has_ended_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [
        (sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"),
        python("proxyctl.worker.files.unpacker"),
    ]
    monkeypatch.setattr(unpacking, "python", lambda _: programs.pop(0))
    assert unpacked(tmp_path, ORDINARY) == 2 * len(b"content")
    assert programs == []


def test_a_claim_that_all_is_done_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent inspects the content itself."""
    made = (
        f"{WALLS} import json; folder = json.loads(sys.argv[1])['folder'];"
        "big = os.open('big', os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder);"
        "os.truncate(big, 2 << 20); say('{\"done\": true}')"
    )
    says(monkeypatch, made)
    with pytest.raises(ArchiveError, match="more than 1048576 bytes"):
        unpacked(tmp_path, ORDINARY)
    assert not (tmp_path / "into").exists()


def test_the_processor_time_of_an_archive_is_bounded(tmp_path: Path) -> None:
    times = UnpackTimes(cpu_seconds=1, bytes_per_cpu_second=1 << 40)
    content, options = gzip.compress(b"") * 3_000_000, UnpackOptions(max_bytes=1 << 40)
    with pytest.raises(ArchiveError, match="signal 24 at the end"):
        unpacked(tmp_path, content, options, times=times)


def test_the_time_of_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"{WALLS} import time; time.sleep(60)")
    with pytest.raises(ArchiveError, match=r"takes more than"):
        unpacked(tmp_path, ORDINARY, times=UnpackTimes(most_seconds=0.5))


def test_an_agent_with_many_descriptors_unpacks(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1_500:
        pytest.skip("needs a higher limit of descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_500), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert unpacked(tmp_path, ORDINARY) == 2 * len(b"content")
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from proxyctl.worker.files.archives import UnpackOptions
from proxyctl.worker.files.unpacking import unpack_confined
unpack_confined(
    Path(sys.argv[2], "archive"), Path(sys.argv[2], "into"), UnpackOptions(1 << 20),
    user=1_900_000_007, is_stopped=lambda: False, check=lambda: None,
)
"""


async def test_the_process_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(slow_archive())
    agent = subprocess.Popen([sys.executable, "-I", "-c", KILLED, CLIENT, str(tmp_path)])
    try:
        await until(lambda: len(list((tmp_path / "into").glob("*"))) > 10)
        [pid] = processes(agent.pid)
    finally:
        agent.kill()
        agent.wait()
    await until(lambda: not is_alive(Path(f"/proc/{pid}")))


def test_root_of_a_user_namespace_unpacks(tmp_path: Path) -> None:
    """There it is no other user's, and may not become one."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from proxyctl.worker.files.unpacking import check\n"
        "finding = check(Path(sys.argv[2]))\n"
        "assert finding.is_met, finding\n"
    )
    if subprocess.run(["unshare", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("this user may make no user namespace")
    arguments = [sys.executable, "-I", "-c", program, CLIENT, str(tmp_path)]
    for prefix in (
        ["unshare", "--map-root-user"],
        ["setpriv", "--bounding-set=-chown,-setuid,-setgid"],
        ["setpriv", "--bounding-set=-kill"],
        ["setpriv", "--bounding-set=-all"],
    ):
        if prefix[0] == "unshare" or os.geteuid() == 0:
            subprocess.run([*prefix, *arguments], check=True)


def test_a_device_without_walls_refuses_archives_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(
        monkeypatch,
        f"import os, sys; sys.path.insert(0, {CLIENT!r})\n"
        "from proxyctl.worker.files import confinement, unpacker\n"
        "def refused(path): raise PermissionError(1, 'x')\n"
        "os.chroot = refused\n"
        "confinement._landlock_rules = lambda *_: (None, 0)\n"
        "unpacker.main(sys.argv[1:])\n",
    )
    with pytest.raises(TaskError, match="neither Landlock nor user namespaces") as caught:
        unpacked(tmp_path, ORDINARY)
    assert caught.value.kind == "refused"
    finding = check(tmp_path)
    assert not finding.is_met
    assert "neither Landlock nor user namespaces" in finding.actual
    assert finding.remedy


def test_a_device_reports_the_confinement_of_its_archives(tmp_path: Path) -> None:
    finding = check(tmp_path)
    assert finding.is_met, finding.actual
    assert "a filter of system calls" in finding.actual
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from proxyctl.worker.files.archives import UnpackOptions
from proxyctl.worker.files.unpacking import unpack_confined
for number, name in enumerate(sys.argv[3:]):
    print(unpack_confined(
        Path(name), Path(sys.argv[2], str(number)), UnpackOptions(1 << 20), user=1_900_000_007,
        is_stopped=lambda: False, check=lambda: None,
    ))
"""


@pytest.mark.parametrize("interpreter", brief(pythons(OLDEST, NEWEST)))
def test_every_python_has_all_it_needs_when_its_files_are_out_of_reach(
    tmp_path: Path, interpreter: str
) -> None:
    """Libraries load some codecs only when an archive needs them."""
    old_names = io.BytesIO()
    with zipfile.ZipFile(old_names, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fold\x00", b"")
        archive.writestr("caf\u00e9", b"x")
    named = old_names.getvalue().replace(b"fold\x00", b"fold\x82")  # as DOS would have written it
    contents = [press(ORDINARY) for press in (bytes, gzip.compress, bz2.compress, lzma.compress)]
    paths = []
    for number, content in enumerate([*contents, named]):
        paths.append(tmp_path / f"archive-{number}")
        paths[-1].write_bytes(content)
    done = subprocess.run(
        [interpreter, "-I", "-c", PROGRAM, CLIENT, str(tmp_path), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(f"[{','.join(done.stdout.split())}]") == [14, 14, 14, 14, 1]
