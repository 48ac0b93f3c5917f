"""proxyctl.worker.executors.base.devices"""

from pathlib import Path

import pytest

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.base.devices import gpu_nodes


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A driver's folder with two cards, of which the first has the second node."""
    for bus, uuid, minor in (("0000:01:00.0", "GPU-aaa", 1), ("0000:02:00.0", "GPU-bbb", 0)):
        folder = tmp_path / "driver" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return tmp_path / "driver"


def test_a_job_gets_the_nodes_of_its_own_cards(driver: Path, tmp_path: Path) -> None:
    """By the driver's number, and those that all programs need, as far as they are there."""
    devices = tmp_path / "dev"
    names = [Path(each).name for each in gpu_nodes(("GPU-aaa",), driver, devices)]
    assert names == ["nvidia1", "nvidiactl", "nvidia-uvm"]
    assert gpu_nodes((), driver, devices) == []


@pytest.mark.parametrize("uuid", ["GPU-ccc", ""])
def test_a_missing_card_is_named(driver: Path, tmp_path: Path, uuid: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(TaskError) as error:
        gpu_nodes((uuid,), driver, tmp_path / "dev")
    assert error.value.kind == "host"
