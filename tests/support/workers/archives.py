"""Archives of a hostile stranger, made up from a seed: tar files, zip files and image layers."""

import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# Few names, so that members meet: the name of one is the folder, the link or the target of others.
NAMES = ("a", "b", "c")
KINDS = ("tar", "layer", "zip")
# Names and targets that have led out of a folder somewhere before.
HOSTILE = (
    "..", "../..", "../../victim", "/", "/tmp", "//a", "a/..", "a/../..", "./a", "a//b", "a/",
    "", ".", "..\\a", "C:\\a", "C:a", "\\\\host\\a", "a\0b", "a\n", "\udcff", "é", ".wh.a",
    ".wh..wh..opq", ".wh..", "...", "CON", "victim", "x" * 300, "/".join(["x" * 200] * 9),
    "/".join(["a"] * 700), "/proc/self/cwd/a", "../into/a", "../../../../../../../../tmp",
)  # fmt: skip
# Other types of members: devices, a pipe, old and unknown types.
TYPES = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"S", b"Z", b"7")


@dataclass(frozen=True)
class Member:
    """A member of an archive: "file", "folder", "link", "hard" or a type of tar."""

    kind: str
    name: str
    target: str = ""


def members_of(seed: int) -> list[Member]:
    """Return a made-up list of members."""
    random_ = random.Random(seed)
    return [_member(random_) for _ in range(random_.randint(1, 7))]


def archive_of(members: Sequence[Member], kind: str, seed: int = 0) -> bytes:
    """Return an archive of these members in this order."""
    random_ = random.Random(seed)
    if kind == "zip":
        return _zipped(members, random_)
    content = _tarred(members, random_)
    # As registries have layers, and as buyers have archives.
    press: Callable[[bytes], bytes] = gzip.compress
    if kind == "tar":
        press = random_.choice((bytes, bytes, bytes, gzip.compress, bz2.compress, lzma.compress))
    return press(content)


def tarred(members: Iterable[Member]) -> bytes:
    """Return a plain tar file of these members in this order."""
    return _tarred(members, random.Random(0))


def _member(random_: random.Random) -> Member:
    kind = random_.choices(
        ("file", "folder", "link", "hard", "other"), weights=(30, 10, 45, 12, 3)
    )[0]
    name = _path(random_, 6)
    if kind == "link":
        return Member("link", name, _target(random_))
    if kind == "hard":
        return Member("hard", name, _path(random_, 3))
    return Member(kind, name)


def _path(random_: random.Random, depth: int) -> str:
    if random_.random() < 0.04:
        return random_.choice(HOSTILE)
    parts = [random_.choice(NAMES) for _ in range(random_.randint(1, depth))]
    if random_.random() < 0.03:
        parts.insert(random_.randrange(len(parts) + 1), random_.choice(HOSTILE))
    return random_.choice(("", "", "", "./")) + "/".join(parts)


def _target(random_: random.Random) -> str:
    """Return a target with steps up and down, most of them inside by their names."""
    if random_.random() < 0.05:
        return random_.choice(HOSTILE)
    steps = [".."] * random_.choice((0, 0, 1, 2, 3, 4, 5))
    steps += [random_.choice(NAMES) for _ in range(random_.randint(0, 3))]
    if random_.random() < 0.4:  # up again, behind a possible link
        steps += [".."] * random_.randint(1, 5)
        steps += [random_.choice((*NAMES, "victim"))]
    return "/".join(steps) or "."


def _tarred(members: Iterable[Member], random_: random.Random) -> bytes:
    made = io.BytesIO()
    form = random_.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(
        fileobj=made, mode="w", format=form, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for each in members:
            info = tarfile.TarInfo(each.name)
            info.mode = random_.choice((0o644, 0o755, 0, 0o7777))
            content = b""
            if each.kind == "file":
                content = b"content"
                info.size = len(content)
            elif each.kind == "folder":
                info.type = tarfile.DIRTYPE
            elif each.kind in ("link", "hard"):
                info.type = tarfile.SYMTYPE if each.kind == "link" else tarfile.LNKTYPE
                info.linkname = each.target
            else:
                info.type = random_.choice(TYPES)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def _zipped(members: Iterable[Member], random_: random.Random) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for each in members:
            name = each.name.encode("utf-8", "replace").decode()
            info = zipfile.ZipInfo(f"{name}/" if each.kind == "folder" else name)
            info.filename = (
                f"{name}/" if each.kind == "folder" else name
            )  # the constructor cuts it at a NUL
            mode = random_.choice((0o644, 0o755, 0, 0o7777))
            info.external_attr = (stat.S_IFREG | mode) << 16
            content = b"content"
            if each.kind in ("link", "hard"):  # of hard links .zip knows nothing
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                content = each.target.encode("utf-8", "replace")
            elif each.kind == "other":
                info.external_attr = (stat.S_IFCHR | mode) << 16
            info.compress_type = random_.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            archive.writestr(info, b"" if each.kind == "folder" else content)
    return made.getvalue()
