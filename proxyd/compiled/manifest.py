"""Sources of a library of compiled modules, and the check that they are unchanged.

Every command imports this module by `import proxyd`, so it imports only cheap modules of Python
itself.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import source_hash

SUFFIX = EXTENSION_SUFFIXES[0]  # such as ".cpython-311-x86_64-linux-gnu.so"
# Two Pythons may share that name; their version and their folder distinguish them.
PYTHON = "-".join(
    [
        SUFFIX.removeprefix(".").removesuffix(".so"),
        sys.version.partition(" ")[0],
        source_hash(os.fsencode(sys.base_prefix)).hex()[:8],
    ]
)
GROUP = "proxyd"  # mypyc's name for what is compiled together
LIBRARY = f"{GROUP}__mypyc"  # the module that mypyc makes of it
FILE = "MANIFEST"
TITLE = "proxyd, compiled files, form 2"
FAILED = "failed "  # the one line of a manifest that says why there is nothing
END = "end"  # the last line: a manifest without it was cut off
# Ten times the usual size; a longer manifest is not ours.
MANIFEST_MAX_BYTES = 100_000


class UnusableError(Exception):
    """No compiled files may be used; the message has the reason."""


def folder(root: str) -> str:
    """Return where the compiled files of this Python lie, for the packages below `root`."""
    return os.path.join(root, "proxyd", "compiled", PYTHON)


class Manifest:
    """Record of a library's sources.

    Args:
        recipe: digest of its making: everything that changes the outcome apart from the sources.
        library: the library's path below the root.
        files: the entry of each source, by its path below the root, and of the library.
    """

    def __init__(self, recipe: str, library: str, files: "dict[str, Entry]") -> None:
        self.recipe = recipe
        self.library = library
        self.files = files

    def text(self) -> str:
        """Return the manifest as text; equal manifests have equal texts."""
        lines = [TITLE, f"python {PYTHON}", f"recipe {self.recipe}", f"library {self.library}"]
        for path, entry in sorted(self.files.items()):
            lines.append(f"file {entry.digest} {entry.size} {entry.changed_ns} {path}")
        return "\n".join([*lines, END, ""])


class Entry:
    """Recorded state of a file: its size in bytes, time of change (ns since 1970), and SHA-256."""

    __slots__ = ("changed_ns", "digest", "size")

    def __init__(self, digest: str, size: int, changed_ns: int) -> None:
        self.digest = digest
        self.size = size
        self.changed_ns = changed_ns

    def is_of(self, path: str) -> bool:
        """Return whether the file still has the same bytes.

        A file with the same size and time of change was not written since. The bytes of any other
        file are compared, because a copy and a checkout change only the time.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        now = os.stat(path)
        if now.st_size != self.size:
            return False
        return now.st_mtime_ns == self.changed_ns or entry_of(path).digest == self.digest


def entry_of(path: str) -> Entry:
    """Return the entry of a file in its present state.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    from hashlib import sha256  # noqa: PLC0415 - takes a millisecond, and is rarely asked for

    with open(path, "rb") as file:
        now = os.fstat(file.fileno())
        return Entry(sha256(file.read()).hexdigest(), now.st_size, now.st_mtime_ns)


def read(root: str, name: str = FILE) -> Manifest:
    """Return the record of the sources of the compiled files below `root`.

    Args:
        root: the folder with the package `proxyd`.
        name: the manifest's name; another than the usual one before it is put in place.

    Raises:
        UnusableError: there is no manifest, or it says nothing that can be understood.
    """
    try:
        with open(os.path.join(folder(root), name), "rb") as file:
            lines = file.read(MANIFEST_MAX_BYTES).decode("ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        raise UnusableError(_nothing(root)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableError(f"the compiled files' manifest cannot be read: {error}") from None
    if len(lines) == 1 and lines[0].startswith(FAILED):
        raise UnusableError(lines[0].removeprefix(FAILED))
    if len(lines) < 5 or lines[0] != TITLE or lines[-1] != END:
        raise UnusableError("the compiled files' manifest is damaged")
    if lines[1] != f"python {PYTHON}":
        raise UnusableError(f"the compiled files are for another Python than {PYTHON}: {lines[1]}")
    try:
        recipe, library = _word("recipe", lines[2]), _word("library", lines[3])
        return Manifest(recipe, library, dict(map(_entry, lines[4:-1])))
    except (ValueError, IndexError):
        raise UnusableError("the compiled files' manifest is damaged") from None


def check(root: str, name: str = FILE) -> Manifest:
    """Return the manifest of the compiled files below `root`, if no file has changed.

    Args:
        root: the folder with the package `proxyd`.
        name: the manifest's name; another than the usual one before it is put in place.

    Raises:
        UnusableError: they may not be used.
    """
    manifest = read(root, name)
    for path, entry in manifest.files.items():
        try:
            is_same = entry.is_of(os.path.join(root, path))
        except OSError:
            what = "is missing" if path == manifest.library else "is gone"
            raise UnusableError(f"compiled files are stale: {path} {what}") from None
        if not is_same and path == manifest.library:
            raise UnusableError(f"the compiled file is damaged, or a foreign one: {path}")
        if not is_same:
            raise UnusableError(f"compiled files are stale: {path} has changed")
    if manifest.library not in manifest.files:
        raise UnusableError("the compiled files' manifest is damaged")
    return manifest


def library_of(digest: str) -> str:
    """Return the path below the root of the library whose bytes have that SHA-256.

    No library is put in another's place: a process that has read a manifest loads the library that
    it names.
    """
    return f"proxyd/compiled/{PYTHON}/{LIBRARY}-{digest[:16]}{SUFFIX}"


def _word(kind: str, line: str) -> str:
    found, _, word = line.partition(" ")
    if found != kind or not word:
        raise ValueError(line)
    return word


def _entry(line: str) -> tuple[str, Entry]:
    kind, digest, size, changed_ns, path = line.split(" ", 4)
    if kind != "file" or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(line)
    return path, Entry(digest, int(size), int(changed_ns))


def _nothing(root: str) -> str:
    """Return the message that nothing was compiled, and the Pythons with compiled files."""
    above = os.path.dirname(folder(root))
    others = [
        name
        for name in sorted(os.listdir(above))
        if os.path.exists(os.path.join(above, name, FILE))
    ]
    if others:
        return f"compiled files are for {', '.join(others)}, and this Python is {PYTHON}"
    return "not compiled yet"
