"""A small checkout: proxyd's builder and finder, and two modules that take seconds to compile."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from proxyd.compiled import manifest
from proxyd.compiled.builder import Builder
from proxyd.compiled.finder import CompiledFinder
from support.daemons.process import ROOT

NAMES = ("proxyd.small", "proxyd.folder.smaller")
HOT = f"HOT = {NAMES!r}\n"
SMALL = """
from proxyd.constants import BASE
from proxyd.folder.smaller import doubled


def answer(number: int) -> int:
    return doubled(number) + BASE


def fail(number: int) -> int:
    return 1 // (number - number)  # never do this
"""
SMALLER = """
def doubled(number: int) -> int:
    return 2 * number
"""
CONSTANTS = """
from typing import Final

BASE: Final = 1
"""
LOOK = """
import proxyd.small, proxyd.folder.smaller
from proxyd.compiled import finder
ways = {each.__file__.rpartition(".")[2] for each in (proxyd.small, proxyd.folder.smaller)}
assert ways == ({"so"} if finder.way() == "compiled" else {"py"}), ways
print(proxyd.small.answer(10), finder.description())
"""


class Checkout:
    """A checkout in a folder of its own.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.small = root / "proxyd" / "small.py"
        self.constants = root / "proxyd" / "constants.py"

    def write(self) -> None:
        """Put everything there, not compiled."""
        for name in ("proxyd/__init__.py", "pyproject.toml", "constraints.txt"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        (self.root / "proxyd" / "compiled").mkdir()
        for path in (ROOT / "proxyd" / "compiled").glob("*.py"):
            shutil.copy2(path, self.root / "proxyd" / "compiled" / path.name)
        (self.root / "proxyd" / "compiled" / "hot.py").write_text(HOT)
        (self.root / "proxyd" / "folder").mkdir()
        (self.root / "proxyd" / "folder" / "__init__.py").touch()
        (self.root / "proxyd" / "folder" / "smaller.py").write_text(SMALLER)
        self.small.write_text(SMALL)
        self.constants.write_text(CONSTANTS)

    @property
    def folder(self) -> Path:
        """Folder of the compiled files."""
        return Path(manifest.folder(str(self.root)))

    @property
    def library(self) -> Path:
        return self.root / manifest.read(str(self.root)).library

    @property
    def manifest(self) -> Path:
        return self.folder / manifest.FILE

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def log_path(self) -> Path:
        return self.root / "build" / "compiled" / manifest.PYTHON / "log"

    def build(self, target: Path | None = None, **variables: str) -> str:
        """Compile, for another folder if one is given. Return the line that reports the result."""
        headers = Path(sysconfig.get_path("include"))
        environment = self.environment(variables)
        return Builder(self.root, target or self.root, environment, headers, NAMES).build()

    def look(self, **variables: str) -> str:
        """Import both modules in a new process; return an answer, and how they run."""
        told = self.run("-c", LOOK, **variables)
        _, _, why = told.partition("interpreted: ")
        if why and "cannot be loaded" not in why:
            assert CompiledFinder(str(self.root), variables).why_interpreted() == why
        return told

    def run(self, *arguments: str, **variables: str) -> str:
        """Run Python there. Return its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.rstrip("\n")

    @staticmethod
    def environment(variables: dict[str, str]) -> dict[str, str]:
        """Return the variables of a process that runs there."""
        kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        return kept | {"CFLAGS": "-O0"} | variables  # it takes a third of the time


UNWANTED = {"CC", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PROXYD_INTERPRETED", "PYTHONPATH"}


def needs_compiler() -> None:
    """Skip a test where nothing can be compiled."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not shutil.which("cc") or not header.exists():
        pytest.skip("needs a C compiler and Python's headers")
