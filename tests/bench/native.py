"""The C programs of the benchmark, compiled where they are needed."""

import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = ("-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


def compiled(name: str, folder: Path) -> str:
    """Compile one of the programs beside this file into a folder, and return its path."""
    program = folder / name
    if not program.exists():
        if shutil.which("gcc") is None:
            sys.exit("make bench needs a C compiler: apt-get install gcc libc6-dev")
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["gcc", *FLAGS, "-o", str(program), str(source)], check=True)
    return str(program)
