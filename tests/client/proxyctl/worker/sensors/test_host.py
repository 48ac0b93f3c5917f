import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxyctl.worker.sensors import host, nvidia


def test_a_value_that_cannot_be_read_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "_THERMAL", tmp_path)
    monkeypatch.setattr(host, "_psutil_temperatures", list)
    assert host.cpu_temperature() is None
    assert "cpu_temp" not in host.readings(host.Processor())
    zone = tmp_path / "thermal_zone0"
    zone.mkdir()
    (zone / "type").write_text("x86_pkg_temp\n")
    (zone / "temp").write_text("63500\n")
    (tmp_path / "thermal_zone1").mkdir()
    assert host.cpu_temperature() == 63.5
    assert host.readings(host.Processor())["cpu_temp"] == 63.5


def test_every_machine_has_these_values(tmp_path: Path) -> None:
    readings = host.readings(host.Processor())
    assert readings["cpu_cores"] >= host.cores() >= 1
    assert readings["ram_gb"] > 0
    assert 0 < readings["ram_pct"] <= 100
    assert host.free_disk_bytes(tmp_path) > 0
    idle = host.idle_seconds()
    assert idle is None or idle >= 0


def test_without_a_driver_there_is_no_gpu() -> None:
    if not Path("/dev/nvidiactl").exists():
        assert nvidia.read_gpus() == []
        assert nvidia.cuda_version() == ""


def test_a_driver_that_is_being_replaced_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def fails() -> None:
        raise NVMLError("driver/library version mismatch")

    driver = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=fails,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert nvidia.read_gpus() == []
