"""The Pythons that the program for devices is run on: that of the tests, and the oldest one."""

import shutil
import sys
from pathlib import Path


def pythons() -> list[str]:
    """Return the Python of the tests, and 3.9 if this machine has it."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob("3.9.*/bin/python3.9"))
    oldest = str(installed[0]) if installed else shutil.which("python3.9")
    return [sys.executable, *([oldest] if oldest else [])]
