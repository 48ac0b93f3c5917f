"""Trees of folders that no path reaches the end of."""

import os
from pathlib import Path


def make_deep(top: Path, name: str, levels: int) -> None:
    """Make `levels` folders of the same name, each in the one before it."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(levels):
            Path(name).mkdir()
            os.chdir(name)
    finally:
        os.fchdir(here)
        os.close(here)
