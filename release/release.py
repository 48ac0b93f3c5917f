"""Build everything of a release: python3 -m release.release VERSION [--target FOLDER].

The folder gets the Debian package, the container image, both programs for devices, the changelog's
section of the version, and SHA256SUMS. All times are those of the commit.
"""

import argparse
import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release import deb, image
from release.deb import ROOT, BuildError

SUMS = "SHA256SUMS"
NOTES = "CHANGES.md"
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([~+.-][A-Za-z0-9]+)*")
CHUNK_BYTES = 1024 * 1024


def build(target: Path, version: str, *, with_image: bool = True) -> list[Path]:
    """Build a release in a new folder, and return the paths of its files.

    Args:
        target: the folder.
        version: the version of the packages.
        with_image: whether to build the container image, which only root can do.

    Raises:
        BuildError: the folder exists, the version has a wrong form, a change is not committed, or
            the machine lacks a program.
        CalledProcessError: a step failed; its output has the reason.
    """
    if VERSION.fullmatch(version) is None:
        raise BuildError(f"{version!r} is not a version, such as 0.2.0 or 0.2.0~rc1")
    if deb.output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        raise BuildError("a change is not committed: git status")
    notes = section((ROOT / "CHANGELOG.md").read_text(), version)
    if target.exists():
        raise BuildError(f"{target} exists: a release needs a new folder")
    draft = target.with_name(f"{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    package = deb.build(draft, version)
    if with_image:
        image.build(draft, package)
    for name, *plugins in (("proxyctl.pyz",), ("proxyctl-clusters.pyz", "clusters")):
        builder = (deb.PYTHON, "client/build.py", str(draft / name), *plugins)
        deb.call(*builder, PYTHONDONTWRITEBYTECODE="1")
    (draft / NOTES).write_text(notes)
    (draft / SUMS).write_text(sums(draft))
    draft.rename(target)
    return sorted(target.iterdir())


def section(changelog: str, version: str) -> str:
    """Return the section of a version in the changelog, or the unreleased one.

    Raises:
        BuildError: it has neither, or the section is empty.
    """
    for name in (version, "Unreleased"):
        heading = rf"## \[{re.escape(name)}\][^\n]*\n"
        found = re.search(heading + r"(.*?)(?=\n## \[|\Z)", changelog, re.DOTALL)
        if found is not None and found[1].strip():
            return f"# proxyd {version}\n\n{found[1].strip()}\n"
    raise BuildError(f"CHANGELOG.md has no section [{version}] or [Unreleased]")


def sums(folder: Path) -> str:
    """Return the lines of SHA256SUMS for all other files of a folder, as sha256sum prints them."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name == SUMS:
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        lines.append(f"{digest.hexdigest()}  {path.name}\n")
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the release that the command line describes, and print the paths of its files."""
    parser = argparse.ArgumentParser(
        prog="make release", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("version", help="the version of the packages, such as 0.2.0")
    parser.add_argument("--target", type=Path, help="a new folder; by default dist/VERSION")
    parser.add_argument("--no-image", action="store_true", help="build no container image")
    parser.add_argument(
        "--new-base", action="store_true", help="fetch the newest packages of Debian first"
    )
    options = parser.parse_args(arguments)
    if options.new_base:
        shutil.rmtree(image.BASE, ignore_errors=True)
    target = options.target or ROOT / "dist" / options.version
    try:
        for path in build(target, options.version, with_image=not options.no_image):
            print(path)
    except BuildError as failure:
        print(f"make release: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
