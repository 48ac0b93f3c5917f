import sys
from pathlib import Path

import pytest
from support.base.cases import cases

from proxyctl.exit.agent.restraints import reason_to_rest
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.power import (
    Power,
    linux_power,
    macos_power,
    read_power,
    termux_power,
    windows_power,
)

CHARGING = '{"health": "GOOD", "percentage": 80, "plugged": "PLUGGED_AC", "status": "CHARGING"}'
UNPLUGGED = '{"percentage": 80, "plugged": "UNPLUGGED", "status": "DISCHARGING"}'
WIFI = '{"ssid": "home", "supplicant_state": "COMPLETED"}'
NO_WIFI = '{"supplicant_state": "DISCONNECTED"}'


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(f"{text}\n")


@cases(
    ("power", "limits", "words"),
    [
        (Power(), DeviceLimits(), ""),
        (Power(on_battery=False, percent=3), DeviceLimits(), ""),
        (Power(on_battery=True, percent=50), DeviceLimits(), ""),
        (Power(on_battery=True, percent=49), DeviceLimits(), "on battery below 50 %"),
        (Power(on_battery=True), DeviceLimits(), "on battery below 50 %"),
        (Power(on_battery=True, percent=100), DeviceLimits(battery_percent=101), "on battery"),
        (Power(on_battery=True, percent=1), DeviceLimits(battery_percent=0), ""),
        (Power(metered=True), DeviceLimits(), "the network is metered"),
        (Power(metered=True), DeviceLimits(on_metered=True), ""),
        (Power(is_phone=True), DeviceLimits(), "does not say if it is charging"),
        (Power(on_battery=False, is_phone=True), DeviceLimits(), "which network"),
        (Power(on_battery=False, metered=False, is_phone=True), DeviceLimits(), ""),
        (Power(on_battery=True, percent=99, is_phone=True), DeviceLimits(), "not charging"),
    ],
)
def test_when_a_device_rests(power: Power, limits: DeviceLimits, words: str) -> None:
    reason = reason_to_rest(power, limits)
    assert reason.startswith(words) or words in reason
    assert bool(reason) == bool(words)


def test_linux_reads_its_supplies(tmp_path: Path) -> None:
    assert linux_power(tmp_path / "none", None) == Power()
    supply(tmp_path, "hidpp_battery_0", type="Battery", scope="Device", capacity="5")
    assert linux_power(tmp_path, None) == Power()
    supply(tmp_path, "BAT0", type="Battery", capacity="81", status="Discharging")
    supply(tmp_path, "AC", type="Mains", online="0")
    assert linux_power(tmp_path, True) == Power(on_battery=True, percent=81, metered=True)
    (tmp_path / "AC" / "online").write_text("1\n")
    assert linux_power(tmp_path, False) == Power(on_battery=False, percent=81, metered=False)
    supply(tmp_path, "BAT1", type="Battery", capacity="20", status="Full")
    (tmp_path / "AC" / "online").write_text("0\n")
    assert linux_power(tmp_path, None) == Power(on_battery=False, percent=20)


def test_macos_says_it_in_words() -> None:
    on_battery = (
        "Now drawing from 'Battery Power'\n"
        " -InternalBattery-0 (id=1234)\t47%; discharging; 3:12 remaining present: true\n"
    )
    on_mains = on_battery.replace("Battery Power", "AC Power").replace("dis", "")
    assert macos_power(on_battery) == Power(on_battery=True, percent=47)
    assert macos_power(on_mains) == Power(on_battery=False, percent=47)
    assert macos_power("Now drawing from 'AC Power'\n") == Power()


def test_termux_answers_in_json() -> None:
    assert termux_power(CHARGING, WIFI) == Power(False, 80, False, True)
    assert termux_power(UNPLUGGED, NO_WIFI) == Power(True, 80, True, True)
    assert termux_power("", "") == termux_power("[]", "null") == Power(is_phone=True)


def test_windows_answers_in_numbers() -> None:
    assert windows_power(0, 0, 47) == Power(on_battery=True, percent=47)
    assert windows_power(1, 8, 255) == Power(on_battery=False)
    assert windows_power(1, 128, 255) == windows_power(255, 0, 255) == Power()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux")
def test_commands_of_the_system_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("termux-battery-status", CHARGING), ("termux-wifi-connectioninfo", WIFI)):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "busctl").write_text("#!/bin/sh\necho u 1\n")
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("PREFIX", raising=False)
    assert read_power().metered is True
    (tmp_path / "busctl").write_text("#!/bin/sh\nexit 1\n")
    assert read_power().metered is None
    monkeypatch.setenv("PREFIX", "/data/data/com.termux/files/usr")
    assert read_power() == Power(False, 80, False, True)
