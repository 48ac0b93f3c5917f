"""Tasks of samples: their scripts print the result that the marketplace expects."""

import random
import shutil
import subprocess
import sys

from support.base.cases import cases

from market.dispatch import sample_tasks
from market.dispatch.sample_tasks import SampleSizes, Task, Template
from proxyctl.protocol.jobspec import check


def printed(task: Task) -> str:
    """Run a task's script as a device does."""
    interpreter = {"python3": sys.executable, "bash": shutil.which("bash") or "/bin/bash"}
    command = [interpreter[task.payload.interpreter], "-c", task.payload.script]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@cases("template", sample_tasks.TEMPLATES)
def test_a_script_prints_the_answer(template: Template) -> None:
    task = sample_tasks.make(random.Random(repr(template)[:20]), templates=(template,))
    check(task.payload, "script")
    assert printed(task) == task.answer


def test_no_two_tasks_are_alike() -> None:
    small = SampleSizes((10, 20), (10, 20), (10, 20), (10, 20))
    choose = random.Random(7)
    tasks = [sample_tasks.make(choose, small) for _ in range(200)]
    assert len({task.payload.script for task in tasks}) == 200
    assert len({task.answer for task in tasks}) > 190
    assert len({task.title for task in tasks}) > 100
    # No line is common to all scripts of one interpreter.
    for interpreter in ("python3", "bash"):
        scripts = [t.payload.script for t in tasks if t.payload.interpreter == interpreter]
        common = set.intersection(*(set(script.splitlines()) for script in scripts))
        assert common <= {"done"}
