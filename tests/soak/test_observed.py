"""The daemon that is soaked starts as the product does, and tells its tasks."""

from pathlib import Path

from soak.__main__ import ROOT, Observed


def test_it_serves_and_says_how_many_tasks_it_has(tmp_path: Path) -> None:
    daemon = Observed(f"sqlite:///{tmp_path}/proxyd.db", PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    try:
        daemon.wait_ready()
        assert daemon.tasks() > 0
    finally:
        status = daemon.stop()
    assert status == 0
