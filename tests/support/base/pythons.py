"""The Pythons that the program for devices is run on: that of the tests, and others by version."""

import shutil
import sys
from pathlib import Path

CLIENT = str(Path(__file__).parents[3] / "client")  # for a process that imports the program
OLDEST = "3.9"
NEWEST = (
    "3.13"  # since 3.12, transports keep the object that is written to them, and no longer copy it
)


def pythons(*versions: str) -> list[str]:
    """Return the Python of the tests, and installed Pythons of some other versions."""
    found = [sys.executable]
    for version in versions or (OLDEST,):
        installed = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
        path = next((str(each) for each in sorted(installed)), None)
        path = path or shutil.which(f"python{version}")
        found += [path] if path else []
    return found
