"""The simulation in `make test`: fixed seeds, and the seeds that ever failed, but no slow ones."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.base.cases import cases

from tests.sim.mutants import MUTANTS, Mutant, mutated
from tests.sim.shrink import reduced_list

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
@pytest.mark.timeout(600)  # ten seconds of a core, which a busy machine has in minutes
def test_the_fixed_and_the_failed_seeds_pass_and_run_alike_in_another_process() -> None:
    ended = simulate("--fixed", "--brief", "--go-on", "--digests")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # One process with exits, several nodes, and several processes of one machine.
    again = simulate("26", "--count", "3", "--digests")
    digests = re.findall(r"^seed .* digest \w+$", again.stdout, re.MULTILINE)
    assert len(digests) == 3
    assert set(digests) <= set(ended.stdout.splitlines())


@pytest.mark.long
@pytest.mark.timeout(600)  # as above
def test_all_seeds_that_ever_failed_pass() -> None:
    ended = simulate("--fixed", "--go-on")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_fault_of_the_product_is_found_and_reported() -> None:
    mutant = "leases: a report has the used bytes, not the certain ones"
    ended = simulate("4", PROXYD_MUTANT=mutant)
    assert ended.returncode == 1
    assert "failed billed more than delivered" in ended.stdout
    assert re.search(r"replay: python -m tests.sim \d --trace", ended.stdout)


def test_the_shrinker_keeps_only_parts_that_are_needed() -> None:
    tried = []

    def fails(left: Sequence[int]) -> bool:
        tried.append(list(left))
        return {3, 11} <= set(left)

    assert reduced_list(range(16), fails) == [3, 11]
    assert len(tried) < 60
    assert reduced_list([1, 2], lambda _: True) == []


@cases("mutant", MUTANTS)
def test_each_mutant_changes_one_place_of_the_product(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.module, "exec")
