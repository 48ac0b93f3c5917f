"""The files by which systems start an exit: well-formed, and about commands that exist."""

import plistlib
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.daemons.process import ROOT

from proxyctl.attach.network.surroundings import PRIVATE
from proxyctl.exit.commands.commands import IN_VAIN
from proxyctl.worker.commands.commands import IN_VAIN as WORKER_IN_VAIN

FOLDER = ROOT / "client" / "autostart"
UNITS = sorted(FOLDER.glob("*.service"))


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_each_runs_an_agent_and_opens_nothing(path: Path) -> None:
    text = path.read_text()
    if "worker" in path.name:
        assert "worker run" in text
    else:
        assert "exit run" in text or "<string>exit</string>\n        <string>run</string>" in text
    assert "--allow" not in text
    assert "token" not in text.lower().replace("interactivetoken", "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_does_not_start_a_hopeless_program_again(path: Path) -> None:
    assert IN_VAIN == WORKER_IN_VAIN
    assert f"RestartPreventExitStatus={IN_VAIN}\n" in path.read_text()


def test_the_unit_of_a_worker_lets_podman_map_users() -> None:
    lines = (FOLDER / "proxyctl-worker.service").read_text().splitlines()
    said = {each.partition("=")[0] for each in lines if not each.startswith("#")}
    # In a unit of a user each of the others implies the first, under which newuidmap is nobody.
    assert not said & {
        "NoNewPrivileges",
        "LockPersonality",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
        "SystemCallFilter",
    }


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_its_units(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    for program in ("%h/.local/bin/proxyctl.pyz", "/usr/local/bin/proxyctl.pyz"):
        text = text.replace(program, "/bin/true")
    (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if path.name in line] == []


def test_the_unit_of_the_system_denies_the_network_at_home() -> None:
    text = (FOLDER / "proxyctl-exit-system.service").read_text()
    (line,) = [each for each in text.splitlines() if each.startswith("IPAddressDeny=")]
    words = line.partition("=")[2].split()
    assert {"localhost", "link-local", "multicast"} < set(words)
    private = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"}
    assert private < set(words)
    assert private < set(map(str, PRIVATE))


def test_the_other_systems_files_are_well_formed() -> None:
    agent = plistlib.loads((FOLDER / "proxyctl-exit.plist").read_bytes())
    assert agent["ProgramArguments"][-2:] == ["exit", "run"]
    task = ET.parse(FOLDER / "proxyctl-exit.xml").getroot()
    name = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    arguments = task.findtext(f"{name}Actions/{name}Exec/{name}Arguments")
    assert arguments is not None
    assert arguments.endswith("exit run")
    subprocess.run(["sh", "-n", FOLDER / "termux-boot"], check=True)
