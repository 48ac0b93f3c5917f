"""Builds proxyctl as one file that any Python runs: `python3 client/build.py dist/proxyctl.pyz`.

It is a zip archive of the sources, as they are: the owner of a device can read all that runs there
(`python3 -m zipfile -e proxyctl.pyz folder`). The same sources give the same bytes everywhere, so
that two people can compare their files by the SHA-256. So nothing is compressed, either: machines
differ in how well they do that.

Folders of plug-ins may follow the file name, like `dist/proxyctl-clusters.pyz clusters`, with
Python 3.11 or later: the file also has them, and the metadata with their entry points.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

SOURCES = Path(__file__).resolve().parent
SHEBANG = b"#!/usr/bin/env python3\n"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip archive knows no earlier time, and needs none
READABLE = 0o644 << 16
# Every version of Python can read it, including those that cannot read the rest.
MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("proxyctl needs Python 3.9 or later; this is " + sys.version.split()[0])

from proxyctl.__main__ import main

main()
"""


def build(target: Path, plugins: list[Path]) -> None:
    """Write the archive as a whole."""
    files = {"__main__.py": MAIN.encode(), **sources(SOURCES, "proxyctl")}
    for folder in plugins:
        files.update(plugin(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.write(SHEBANG)
        with ZipFile(file, "w") as archive:
            for name in sorted(files):
                entry = ZipInfo(name, EARLIEST)
                entry.external_attr = READABLE
                entry.create_system = 3  # also where it is built on Windows
                archive.writestr(entry, files[name], ZIP_STORED)
    unfinished.chmod(0o755)
    unfinished.replace(target)


def sources(folder: Path, package: str) -> dict[str, bytes]:
    """Return the files of a package in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in (folder / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def plugin(folder: Path) -> dict[str, bytes]:
    """Return the files of a distribution, with the metadata that has its entry points."""
    import tomllib  # noqa: PLC0415 - Python 3.11 has it, and proxyctl alone is built without

    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    package = project["name"].replace("-", "_")
    files = sources(folder, package)
    text = files[f"{package}/__init__.py"].decode()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        sys.exit(f"{folder / package} has no version")
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {found[1]}\n"
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    place = f"{package}-{found[1]}.dist-info"
    files[f"{place}/METADATA"] = metadata.encode()
    files[f"{place}/entry_points.txt"] = ("\n".join(lines) + "\n").encode()
    return files


def main() -> None:
    """Build, and print the result."""
    target = Path(sys.argv[1])
    build(target, [Path(each) for each in sys.argv[2:]])
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    print(f"{target}: {target.stat().st_size} bytes, SHA-256 {digest}")  # noqa: T201


if __name__ == "__main__":
    main()
