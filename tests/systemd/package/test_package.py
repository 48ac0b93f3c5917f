"""The Debian package: installed, upgraded, rolled back, removed and purged by apt."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons.process import ROOT, Api
from support.machines import machine as machines
from support.machines.machine import WHEELS, Machine

PAGE = ROOT / "docs" / "how-to" / "debian.md"
SETTINGS = "/etc/proxyd/proxyd.toml"
API = Api("http://127.0.0.1:8080", 1080)
LOGIN = "ada@example.com", "a long password"


def block(words: str) -> str:
    """Return the commands of the page, of the one block that holds these words."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [found] = [each for each in blocks if words in each]
    return str(found)


@pytest.fixture(scope="module")
def packages(package_root: Path) -> Iterator[tuple[Path, Path]]:
    """The package that was built, and one of a later version, where the machine sees both."""
    [built] = (ROOT / "dist").glob("proxyd_*.deb")
    folder = machines.wheels_of(package_root)
    now, later = folder / "proxyd.deb", folder / "proxyd-new.deb"
    shutil.copy2(built, now)
    tree = folder / "unpacked"
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-R", str(built), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    text, number = re.subn(r"(?m)^(Version: .*)$", r"\1+later", control.read_text())
    assert number == 1
    control.write_text(text)
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(later)], check=True)
    shutil.rmtree(tree)
    yield now, later
    now.unlink()
    later.unlink()


class Server:
    """A machine where apt installs the package."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def follow(self, words: str, *, check: bool = True) -> str:
        """Run a block of the page in the folder with the packages; return all output."""
        done = self.machine.run(f"cd {WHEELS}; {block(words)}", check=check)
        assert check or done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    @property
    def state(self) -> str:
        return self.machine.show("ActiveState")

    @property
    def process(self) -> str:
        return self.machine.show("MainPID")

    @property
    def version(self) -> str:
        return self.machine.says("dpkg-query --show --showformat='${Version}' proxyd")

    def audit(self) -> None:
        """Check the ledger."""
        self.machine.run(
            "setpriv --reuid=proxyd --regid=proxyd --clear-groups "
            f"proxyd ledger audit --config {SETTINGS}"
        )

    def backups(self) -> list[str]:
        """Return the names of the backups."""
        return self.machine.says("ls /var/lib/proxyd-backups 2>/dev/null || true").split()


def test_the_package_is_installed_upgraded_rolled_back_and_removed(
    package_machine: Machine, packages: tuple[Path, Path]
) -> None:
    server = Server(package_machine)
    machine = server.machine
    output = server.follow("install --yes ./proxyd.deb")
    assert "set proxy.public_host" in output
    assert server.state == "inactive"
    assert machine.says(f"stat --format='%U %G %a' {SETTINGS}") == "root proxyd 640"
    assert "No broken" in machine.says("dpkg --verify proxyd && echo No broken file")
    assert "(compiled)" in machine.says("proxyd --version")

    server.follow("config check")
    assert server.state == "active"
    server.follow("user create")
    token = API.log_in(*LOGIN)
    assert API.buy(token)["session_id"]
    server.audit()

    # An upgrade makes a backup, restarts the service, and keeps its data.
    before, version = server.process, server.version
    server.follow("proxyd-new.deb")
    assert server.version == f"{version}+later"
    until_true(lambda: server.state == "active" and server.process != before, "the new process")
    assert len(server.backups()) == 1
    assert API.call("GET", "/auth/me", token=token)[0] == 200

    # Without a backup nothing is upgraded or rolled back.
    machine.run("mv /var/lib/proxyd-backups /root/kept; touch /var/lib/proxyd-backups")
    output = server.follow("allow-downgrades", check=False)
    assert "the backup failed, so nothing is upgraded" in output
    assert server.version == f"{version}+later"
    assert server.state == "active"
    machine.run("rm /var/lib/proxyd-backups; mv /root/kept /var/lib/proxyd-backups")

    # With settings that only the other version refuses, the old process continues.
    before = server.process
    drop_in = "/etc/systemd/system/proxyd-backup.service.d/spoil.conf"
    spoil = f"ExecStartPost=+/bin/sh -c 'echo [nonsense] >> {SETTINGS}'"
    machine.run(f"cp {SETTINGS} /root/right; mkdir {drop_in.rpartition('/')[0]}")
    machine.write(drop_in, f"[Service]\n{spoil}\n")
    machine.run("systemctl daemon-reload")
    assert "nonsense" in server.follow("allow-downgrades", check=False)
    machine.run(f"rm -r {drop_in.rpartition('/')[0]}; systemctl daemon-reload")
    assert (server.state, server.process) == ("active", before)
    machine.run(f"cat /root/right > {SETTINGS}; dpkg --configure proxyd")
    until_true(lambda: server.state == "active" and server.process != before, "the old version")
    assert server.version == version
    server.audit()

    # The data outlives the package.
    before_purge = machine.says("stat --format=%i /var/lib/proxyd/proxyd.db")
    output = server.follow("apt-get purge")
    assert "the data stays in /var/lib/proxyd" in output
    assert machine.run(f"test -e {SETTINGS}", check=False).returncode != 0
    assert machine.run("test -e /usr/lib/proxyd", check=False).returncode != 0
    assert machine.says("stat --format=%i /var/lib/proxyd/proxyd.db") == before_purge
    assert "proxyd" not in machine.says("systemctl list-units --no-legend --plain 'proxyd*'")

    # Installed again, it opens that data; without data a purge leaves nothing.
    server.follow("install --yes ./proxyd.deb")
    server.follow("config check")
    assert API.call("GET", "/auth/me", token=token)[0] == 200
    machine.run("systemctl stop 'proxyd*'; rm -r /var/lib/proxyd /var/lib/proxyd-backups")
    server.follow("apt-get purge")
    assert not machine.says(
        "ls -d /etc/proxyd /var/lib/proxyd* /usr/lib/proxyd 2>/dev/null || true"
    )
