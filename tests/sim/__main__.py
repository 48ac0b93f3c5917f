"""Runs the marketplace in virtual time: one seed, many seeds, or mutants of the product."""

import argparse
import os
import sys
from pathlib import Path

# Sets of texts have an order of their own in each process otherwise, and a mutant cannot change a
# compiled module. Modules that Python keeps compiled to bytecode take half the time to import.
SURROUNDINGS = {"PYTHONHASHSEED": "0", "PROXYD_INTERPRETED": "1", "PYTHONDONTWRITEBYTECODE": ""}
if any(os.environ.get(name) != value for name, value in SURROUNDINGS.items()):
    arguments = [sys.executable, "-m", "tests.sim", *sys.argv[1:]]
    os.execve(sys.executable, arguments, os.environ | SURROUNDINGS)

# `support` has the truths of banks, which tests of the marketplace use as well.
sys.path.append(str(Path(__file__).parent.parent))

from tests.sim import mutants  # noqa: E402 - it imports nothing of the product

if mutants.VARIABLE in os.environ:
    mutants.install(os.environ[mutants.VARIABLE])

# This one first: it decides how the data path is imported.
import proxyd  # noqa: F401, E402
from tests.sim import command  # noqa: E402

if __name__ == "__main__":
    sys.exit(command.main(argparse.ArgumentParser("python -m tests.sim", description=__doc__)))
