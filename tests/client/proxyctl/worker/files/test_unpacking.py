"""Archives are unpacked by a process that is confined, bounded, and not believed further."""

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.archives import Member, tarred
from support.mounts import fill, small_disk
from support.pythons import NEWEST, OLDEST, pythons
from support.waiting import until

import proxyctl
from proxyctl.worker.executors.base import TaskError
from proxyctl.worker.executors.family import children
from proxyctl.worker.files import unpacking
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions
from proxyctl.worker.files.unpacking import check, unpack_confined

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
) -> int:
    archive = folder / "archive"
    archive.write_bytes(content)
    return unpack_confined(archive, folder / "into", options, user=UID, is_stopped=is_stopped)


def processes() -> list[int]:
    """Return the processes that unpack for this test's own process."""
    mark = b"proxyctl.worker.files.unpacker"
    found = []
    for pid in children(os.getpid()):
        with suppress(FileNotFoundError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


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


def test_a_list_that_fills_the_memory_ends_that_process_alone(tmp_path: Path) -> None:
    """A list of 32 MB in a .zip file becomes 700,000 objects of Python."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHH", 1, 0, 0) + bytes(12) + b"a"
    entries = entry * (31_000_000 // len(entry))
    end = b"PK\x05\x06" + bytes(4) + struct.pack("<HHLLH", 65_535, 65_535, len(entries), 0, 0)
    with pytest.raises(ArchiveError):
        unpacked(tmp_path, entries + end)


async def test_an_archive_that_is_not_wanted_any_more_ends_its_process(tmp_path: Path) -> None:
    slow = io.BytesIO()
    with zipfile.ZipFile(slow, "w") as archive:
        for number in range(60_000):
            archive.writestr(str(number), b"")
    asked = []

    def is_stopped() -> bool:
        asked.append(len(processes()))
        return len(asked) > 1

    with pytest.raises(ArchiveError, match="not wanted any more"):
        unpacked(tmp_path, slow.getvalue(), is_stopped=is_stopped)
    assert asked[0] == 1
    await until(lambda: not processes())
    assert not (tmp_path / "into").exists()


def test_a_full_disk_is_the_devices(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        (disk / "archive").write_bytes(ORDINARY)
        (disk / "into").mkdir()
        (disk / "into").rmdir()
        filler = fill(disk)
        with filler.open("r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) - 4096)  # for a folder, and for no file
        with pytest.raises(OSError, match="No space left") as caught:
            unpack_confined(disk / "archive", disk / "into", OPTIONS, user=UID, is_stopped=never)
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("print('{\"size_bytes\": 1048577}')", OSError, "Input/output error|ended early"),
        ("print('{\"size_bytes\": -1}')", OSError, "ended early"),
        ('print(\'{"size_bytes": "1"}\')', OSError, "ended early"),
        ("print('[1]')", OSError, "ended early"),
        ('print(\'{"failed": [28, "x"]}\')', OSError, "No space left"),
        ("print('x' * 10_000_000)", OSError, "ended early"),
        ("pass", OSError, "ended early"),
        ("import os; os.kill(os.getpid(), 9)", OSError, "ended early"),
        ("import os; os.kill(os.getpid(), 11)", ArchiveError, "ended by signal 11"),
        ("print('{\"refused\": \"\\\\u001b[2J' + 'x' * 9000 + '\"}')", ArchiveError, "x…$"),
        ('print(\'{"unconfined": "no wall"}\')', TaskError, "safely: no wall"),
    ],
)
def test_what_that_process_says_is_judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    error: type[Exception],
    words: str,
) -> None:
    says(monkeypatch, program)
    with pytest.raises(error, match=words) as caught:
        unpacked(tmp_path, ORDINARY)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "into").exists()


def test_a_device_without_walls_refuses_archives_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(Path(proxyctl.__file__).parent.parent)
    says(
        monkeypatch,
        f"import os, sys; sys.path.insert(0, {root!r})\n"
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


def test_a_device_says_what_confines_its_archives(tmp_path: Path) -> None:
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
        is_stopped=lambda: False,
    ))
"""


@pytest.mark.parametrize("python", pythons(OLDEST, NEWEST))
def test_every_python_has_all_it_needs_when_its_files_are_out_of_reach(
    tmp_path: Path, python: str
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
    root = str(Path(proxyctl.__file__).parent.parent)
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, root, str(tmp_path), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(f"[{','.join(done.stdout.split())}]") == [14, 14, 14, 14, 1]
