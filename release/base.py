"""A Debian in a folder, for the container image and for tests of the units."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

SUITE = "bookworm"


def make(root: Path, packages: Sequence[str]) -> None:
    """Make a Debian in a folder, unless the folder exists.

    Args:
        root: the folder, which appears when the Debian is complete.
        packages: names of packages beside the essential ones.

    Raises:
        CalledProcessError: debootstrap failed; its output has the reason.
    """
    if root.exists():
        return
    draft = root.with_name(f"{root.name}.part")
    rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    listed = f"--include={','.join(packages)}"
    command = ("debootstrap", "--variant=minbase", listed, SUITE, str(draft))
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    draft.rename(root)
