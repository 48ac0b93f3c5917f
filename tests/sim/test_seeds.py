"""The simulation in `make test`: fixed seeds, and all that have ever failed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def simulate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the simulation in a process of its own, interpreted."""
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.early
def test_the_fixed_seeds_and_all_that_ever_failed_pass() -> None:
    ended = simulate("--fixed", "--go-on")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    # Among them are one process, several processes, and nodes.
    seeds = ["3", "4", "11"]
    digests = [
        re.findall(
            r"digest (\w+)",
            "".join(simulate(seed, PYTHONHASHSEED=hashing).stdout for seed in seeds),
        )
        for hashing in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == len(seeds)


def test_a_fault_of_the_product_is_found_and_made_smaller() -> None:
    variables = {"PROXYD_MUTANT": "leases: a recall does not wait"}
    ended = simulate("2", **variables)
    assert ended.returncode == 1
    assert "delivered and not billed" in ended.stdout
    smaller = simulate("2", "--shrink", **variables)
    assert "  failed " in smaller.stdout
    assert smaller.stdout.count("  fault ") < ended.stdout.count("  fault ")
