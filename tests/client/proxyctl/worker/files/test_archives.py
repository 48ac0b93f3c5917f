"""Archives of strangers: nothing leads out of the folder, and nothing grows without end."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.workers.archives import KINDS, NAMES, Member, archive_of, members_of

from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.files import archives
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions, unpack

MIB = 1 << 20


def member(name: str, content: bytes | None = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content or b""


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zipped(entries: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return made.getvalue()


def unpacked(folder: Path, content: bytes, max_bytes: int = MIB, **options: Any) -> int:
    into = folder / "into"
    into.mkdir(exist_ok=True)
    with Folder.at(into) as target:
        return unpack(io.BytesIO(content), target, UnpackOptions(max_bytes, **options))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


ORDINARY = tar(
    member("./", None, type=tarfile.DIRTYPE),
    member("./a.txt", b"a"),
    member("folder/deep/b.txt", b"b" * 100_000),
    member("empty", None, type=tarfile.DIRTYPE),
    member("run.sh", b"#!", mode=0o755),
    member("link", None, type=tarfile.SYMTYPE, linkname="folder/deep/b.txt"),
    member("folder/up", None, type=tarfile.SYMTYPE, linkname="../a.txt"),
    member("hard", None, type=tarfile.LNKTYPE, linkname="./a.txt"),
    member("long/" + "x" * 200 + ".txt", b"long"),
)


@pytest.mark.parametrize("pressed", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_ordinary_tar_is_unpacked(tmp_path: Path, pressed: Callable[[bytes], bytes]) -> None:
    size_bytes = unpacked(tmp_path, pressed(ORDINARY))
    into = tmp_path / "into"
    assert tree(into) == {
        "a.txt": b"a",
        "folder/deep/b.txt": b"b" * 100_000,
        "folder/up": b"a",
        "hard": b"a",
        "link": b"b" * 100_000,
        "long/" + "x" * 200 + ".txt": b"long",
        "run.sh": b"#!",
    }
    assert (into / "empty").is_dir()
    assert (into / "link").is_symlink()
    assert (into / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (into / "a.txt").stat().st_mode & 0o777 == 0o444
    assert size_bytes == 100_000 + 1 + 2 + 1 + 4


def test_an_xz_file_of_several_streams_is_unpacked_whole(tmp_path: Path) -> None:
    """Programs that compress on several processors make them."""
    halves = ORDINARY[:70_000], ORDINARY[70_000:]
    for number, padding in enumerate((b"", bytes(4), bytes(300_000))):
        folder = tmp_path / str(number)
        folder.mkdir()
        pressed = padding.join(lzma.compress(half) for half in halves) + padding
        assert unpacked(folder, pressed) == 100_000 + 1 + 2 + 1 + 4
    with pytest.raises(ArchiveError, match="broken"):
        unpacked(tmp_path, lzma.compress(ORDINARY[:70_000]) + b"junk" * 100)


def test_an_ordinary_zip_is_unpacked(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    content = [("a.txt", b"a"), ("folder/", b""), ("folder/b", b"b" * 1_000), (link, b"folder/b")]
    unpacked(tmp_path, zipped(content), writable=True)
    assert tree(tmp_path / "into") == {
        "a.txt": b"a",
        "folder/b": b"b" * 1_000,
        "link": b"b" * 1_000,
    }
    assert (tmp_path / "into" / "a.txt").stat().st_mode & 0o777 == 0o644


HOSTILE_TARS: dict[str, tuple[bytes, str]] = {
    "up": (tar(member("../out")), "leads out"),
    "up inside": (tar(member("a/../../out")), "leads out"),
    "absolute": (tar(member("/tmp/out")), "leads out"),
    "newline": (tar(member("a\nb")), "not a name"),
    "backslash": (tar(member("..\\out")), "not a name"),
    "link out": (tar(member("l", None, type=tarfile.SYMTYPE, linkname="../secret")), "link out"),
    "link to root": (tar(member("l", None, type=tarfile.SYMTYPE, linkname="/etc")), "link out"),
    "hard link out": (
        tar(member("l", None, type=tarfile.LNKTYPE, linkname="../secret")),
        "leads out",
    ),
    "hard link to a link": (
        tar(
            member("s", None, type=tarfile.SYMTYPE, linkname="x"),
            member("l", None, type=tarfile.LNKTYPE, linkname="s"),
        ),
        "a link to a file that does not exist",
    ),
    "named pipe": (tar(member("p", None, type=tarfile.FIFOTYPE)), "neither a file"),
    "device": (tar(member("d", None, type=tarfile.CHRTYPE)), "neither a file"),
    "folder over file": (tar(member("a"), member("a/b")), "cannot be"),
    "file over folder": (tar(member("a/b"), member("a")), "a file and a folder"),
    "cut off": (ORDINARY[:60_000], "broken"),
    "nothing": (b"", "broken|no archive"),
    "noise": (os.urandom(4096).replace(b"PK", b"xx").replace(b"\x1f\x8b", b"xx"), "no archive"),
    "broken gzip": (gzip.compress(ORDINARY)[:-20], "broken"),
    "noise in gzip": (b"\x1f\x8b" + b"\xff" * 100, "broken"),
}


@pytest.mark.parametrize("name", HOSTILE_TARS)
def test_a_hostile_tar_is_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    content, words = HOSTILE_TARS[name]
    with pytest.raises(ArchiveError, match=words) as caught:
        unpacked(tmp_path, content)
    assert str(caught.value).isprintable()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    """The link is made last, in the place of a folder with a file."""
    (tmp_path / "outside").mkdir()
    content = tar(
        member("a/b", None, type=tarfile.SYMTYPE, linkname="c"),
        member("a/b/file", b"x"),
    )
    with pytest.raises(ArchiveError, match="a link and a folder"):
        unpacked(tmp_path, content)
    # One link leads to the other, which leads out: neither is followed by us.
    content = tar(
        member("x", None, type=tarfile.SYMTYPE, linkname="d/e"),
        member("d/e", None, type=tarfile.SYMTYPE, linkname="../.."),
    )
    with pytest.raises(ArchiveError, match="link out"):
        unpacked(tmp_path, content)


def test_bombs_end_at_their_bounds(tmp_path: Path) -> None:
    zeros = bytes(64 * MIB)
    big = tar(member("zeros", zeros))
    for content in (
        gzip.compress(big),
        zipped([("zeros", zeros)]),
        zipped([(str(number), bytes(MIB)) for number in range(5)]),
        tar(*(member(str(number), bytes(MIB)) for number in range(5))),
    ):
        with pytest.raises(ArchiveError, match="more than 4194304 bytes"):
            unpacked(tmp_path, content, 4 * MIB)
    copies = [member(f"c{n}", None, type=tarfile.LNKTYPE, linkname="a") for n in range(5)]
    with pytest.raises(ArchiveError, match="more than 4194304 bytes"):
        unpacked(tmp_path, tar(member("a", bytes(MIB)), *copies), 4 * MIB)


def test_a_zip_that_lies_of_its_sizes_is_still_counted(tmp_path: Path) -> None:
    content = bytearray(zipped([("zeros", bytes(64 * MIB))]))
    for at in range(len(content) - 4):
        if content[at : at + 4] == struct.pack("<L", 64 * MIB):
            content[at : at + 4] = struct.pack("<L", 10)
    with pytest.raises(ArchiveError):
        unpacked(tmp_path, bytes(content), 4 * MIB)
    written = sum(path.stat().st_size for path in (tmp_path / "into").rglob("*"))
    assert written <= 4 * MIB


def test_headers_do_not_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    pax = gzip.compress(info.tobuf() + bytes(32 * MIB))
    names = bytearray(zipped([("a", b"a")]))
    end = names.rfind(b"PK\x05\x06")
    names[end + 12 : end + 16] = struct.pack("<L", 1 << 30)
    xz = lzma.compress(b"x", preset=9, filters=None)
    tracemalloc.start()
    try:
        for content in (pax, bytes(names)):
            with pytest.raises(ArchiveError):
                unpacked(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 80 * MIB
    finally:
        tracemalloc.stop()
    assert xz
    greedy = lzma.compress(
        b"x", filters=[{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 160 << 20}]
    )
    with pytest.raises(ArchiveError, match=r"[Mm]emory"):
        unpacked(tmp_path, greedy)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="more than 20 files"):
        unpacked(tmp_path, tar(*(member(str(number)) for number in range(21))), members_max=20)
    with pytest.raises(ArchiveError, match="more than 20 files"):
        unpacked(tmp_path, zipped((str(number), b"") for number in range(21)), members_max=20)


def test_only_the_folder_that_is_named_is_accepted(tmp_path: Path) -> None:
    content = tar(member("ckpt/a"), member("train.py"))
    with pytest.raises(ArchiveError, match=r"train\.py is not where it should be"):
        unpacked(tmp_path, content, within="ckpt")
    with pytest.raises(ArchiveError, match="ckpt2/a is not where it should be"):
        unpacked(tmp_path, tar(member("ckpt2/a")), within="ckpt")


def test_links_can_be_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        content = tar(member("a"), member("l", None, type=kind, linkname="a"))
        with pytest.raises(ArchiveError, match="l is a link, and links are not accepted here"):
            unpacked(tmp_path, content, links=False)


def test_folders_count_as_members(tmp_path: Path) -> None:
    """A few long names must not fill the device with folders."""
    with pytest.raises(ArchiveError, match="more than 20 files"):
        unpacked(tmp_path, tar(member("/".join("abcdefghijklmnopqrstu"))), members_max=20)


def test_folders_within_folders_have_a_bound(tmp_path: Path) -> None:
    """Programs that walk a tree recursively would fail."""
    deepest = "/".join(["d"] * archives.DEPTH_MAX)
    assert unpacked(tmp_path, tar(member(deepest, b"x"))) == 1
    with pytest.raises(ArchiveError, match="more than 100 folders deep"):
        unpacked(tmp_path, tar(member(f"{deepest}/x", b"x")))


def test_headers_have_bounds(tmp_path: Path) -> None:
    """Old versions of the library take time by the square of a header's size."""
    long = tarfile.TarInfo("a")
    long.pax_headers = {"comment": "1" * (64 << 10)}
    with pytest.raises(ArchiveError, match="header of it is too large"):
        unpacked(tmp_path, tar((long, b"")))
    made = io.BytesIO()
    entries = {f"VENDOR.{number}": "x" for number in range(archives.GLOBAL_ENTRIES_MAX + 1)}
    with tarfile.open(fileobj=made, mode="w", pax_headers=entries) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(ArchiveError, match="too many global headers"):
        unpacked(tmp_path, made.getvalue())


def test_a_long_list_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A list of 32 MB would become 700,000 objects of Python."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHH", 1, 0, 0) + bytes(12) + b"a"
    entries = entry * (archives.MEMBERS_MAX + 1)
    for said in (1, 65_535):  # the number that the end of the list claims
        end = b"PK\x05\x06" + bytes(4) + struct.pack("<HHLLH", said, said, len(entries), 0, 0)
        with pytest.raises(ArchiveError, match="more than 100000 files"):
            unpacked(tmp_path, entries + end)
    # Two ends that say different sizes: the library takes the one of 64 bits.
    at = len(entries)
    end64 = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entries), 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    end = b"PK\x05\x06" + bytes(4) + struct.pack("<HHLLH", 1, 1, 46, 0, 0)
    with pytest.raises(ArchiveError, match="more than 100000 files"):
        unpacked(tmp_path, entries + end64 + locator + end)


LINK = tarfile.SYMTYPE
BEHIND_LINKS: dict[str, tuple[bytes, str]] = {
    "a link behind a link": (
        tar(
            member("a/b/c/d/e", None, type=LINK, linkname="../../../.."),
            member("a/b/c/d/e/t", None, type=LINK, linkname="../../../.."),
            member("t/victim/file", None, type=LINK, linkname="nothing"),
        ),
        "a/b/c/d/e/t is behind a link",
    ),
    "up behind a link": (
        tar(
            member("a/b/up", None, type=LINK, linkname="../.."),
            member("a/b/out", None, type=LINK, linkname="up/../../victim"),
        ),
        "a/b/out is a link out of its folder",
    ),
    "a file where a link is": (
        tar(member("a"), member("a/b", None, type=LINK, linkname="c")),
        "a name that cannot be",
    ),
    "a hard link where a file is": (
        tar(member("a"), member("a/b", None, type=tarfile.LNKTYPE, linkname="a")),
        "a name that cannot be",
    ),
    "a long target": (
        tar(member("a", None, type=LINK, linkname="x/" * 3_000)),
        "a link out of its folder",
    ),
    "a target with a long part": (
        tar(member("a", None, type=LINK, linkname="x" * 256)),
        "a link out of its folder",
    ),
}


@pytest.mark.parametrize("name", BEHIND_LINKS)
def test_no_member_is_made_behind_a_link(tmp_path: Path, name: str) -> None:
    deep = tmp_path / "1" / "2" / "3"
    deep.mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_bytes(b"mine")
    content, words = BEHIND_LINKS[name]
    with pytest.raises(ArchiveError, match=words):
        unpacked(deep, content)
    assert (tmp_path / "victim" / "file").read_bytes() == b"mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1", "victim"]


def test_links_that_stay_inside_are_made(tmp_path: Path) -> None:
    links = {"a/up": "../b", "b/file": "../c/x", "top": ".", "a/b/root": "../..", "to": "a/up"}
    content = tar(
        member("c/x", b"x"),
        *(member(name, None, type=LINK, linkname=f"./{links[name]}//") for name in links),
    )
    unpacked(tmp_path, content)
    into = tmp_path / "into"
    assert {name: str((into / name).readlink()) for name in links} == links
    assert (into / "to" / "file").read_bytes() == b"x"


# Enough to meet each rule many times; `make fuzz-archives` makes hundreds of thousands.
ARCHIVES = int(os.environ.get("PROXYD_FUZZ_ARCHIVES", "300"))
START = int(os.environ.get("PROXYD_FUZZ_START", "0"))


class Site:
    """Folders around the folder of an archive, with files that a stranger would like."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.into = top / "1" / "2" / "3" / "into"
        self.into.parent.mkdir(parents=True)
        for folder in (top, *(top / path for path in ("1", "1/2", "1/2/3"))):
            (folder / "victim").mkdir()
            (folder / "victim" / "a").write_bytes(b"mine")
            for name in NAMES:
                (folder / name).write_bytes(b"mine")
        self.before = self.outside()

    def outside(self) -> dict[str, tuple[object, ...]]:
        """Return all that can be seen of everything but the folder of the archive."""
        seen: dict[str, tuple[object, ...]] = {}
        waiting = [str(self.top)]
        while waiting:
            folder = waiting.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path == str(self.into):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    is_parent = entry.path == str(self.into.parent)
                    # A folder that has the archive's changes its time with that.
                    time = None if is_parent else (status.st_mtime_ns, status.st_ctime_ns)
                    seen[entry.path] = (status.st_mode, status.st_ino, status.st_size, time)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        return seen

    def unpack(self, content: bytes) -> bool:
        """Unpack an archive, check everything. Return whether it was accepted."""
        self.into.mkdir()
        try:
            with Folder.at(self.into) as target:
                unpack(io.BytesIO(content), target, UnpackOptions(MIB))
            words = ""
        except ArchiveError as error:
            words = str(error)
        assert words.isprintable()
        assert self.outside() == self.before
        self._look_inside()
        remove_tree(self.into)
        return not words

    def _look_inside(self) -> None:
        inside = f"{os.path.realpath(self.into)}/"
        for folder, folders, files in os.walk(self.into):
            for name in (*folders, *files):
                path = f"{folder}/{name}"
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    assert f"{os.path.realpath(path)}/".startswith(inside), path
                else:
                    assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
                    assert not status.st_mode & 0o7022 or stat.S_ISDIR(status.st_mode)
                    assert stat.S_ISDIR(status.st_mode) or status.st_nlink == 1


@pytest.mark.timeout(0)
def test_no_archive_reaches_anything_outside_its_folder(tmp_path: Path) -> None:
    """The property holds for every format, name, link and order."""
    site = Site(tmp_path / "top")
    accepted = dict.fromkeys(KINDS, 0)
    for number in range(START, START + ARCHIVES):
        members = members_of(number)
        kind = KINDS[number % len(KINDS)]
        try:
            accepted[kind] += site.unpack(archive_of(members, kind, number))
        except BaseException as error:
            raise AssertionError(f"seed {number}, {kind}: {members}") from error
    # Else all of this would show that archives are refused.
    assert min(accepted.values()) > ARCHIVES // 40, accepted


def test_the_order_of_members_makes_no_way_out(tmp_path: Path) -> None:
    site = Site(tmp_path / "top")
    members = (
        Member("link", "a/b/c", "../.."),
        Member("link", "a/b/c/b", "../.."),
        Member("link", "b/victim", "c"),
        Member("file", "a/b/c/victim/a"),
        Member("hard", "c/a", "a/b/c"),
    )
    for ordered in itertools.permutations(members):
        for kind in ("tar", "zip"):
            site.unpack(archive_of(ordered, kind))
