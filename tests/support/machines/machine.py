"""A Debian in a folder, where proxyd is installed and a systemd of its own runs (systemd-nspawn).

python -m support.machines.machine FOLDER    make it, or install this version into the one there is
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from release import base
from support.base.waiting import until_true
from support.daemons.process import ROOT

PACKAGES = ("systemd", "systemd-sysv", "dbus", "ca-certificates")
NEEDS = ("debootstrap", "ip", "nsenter", "systemd-nspawn", "unshare")
INSTALLED = "opt/proxyd"
PROXYD = f"/{INSTALLED}/.venv/bin/proxyd"
# Where it finds packages, and its pip's settings for that: no index, so no network.
WHEELS = "/var/cache/wheels"
FROM_WHEELS = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS}
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
PAGE = ROOT / "docs" / "how-to" / "operations.md"

# The shell stays, to remove the control groups; no other process sees its mounts.
ALONE = "mkdir -p /run/systemd/nspawn; mount -t tmpfs none /run/systemd/nspawn"
BOOT = f"""
{ALONE}
umount --recursive /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
group=/sys/fs/cgroup/proxyd-machine-$$
mkdir $group
echo $$ > $group/cgroup.procs
systemd-nspawn --quiet --directory="$1" --volatile=overlay --machine=proxyd-machine \
    --bind-ro="$2" --register=no --keep-unit --resolv-conf=off --console=pipe --boot &
trap "kill $!" TERM
wait || wait
echo $$ > /sys/fs/cgroup/cgroup.procs
find $group -depth -type d -exec rmdir {{}} +
"""


def lacking() -> str:
    """Return why there can be no machine here; nothing when there can."""
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if os.geteuid() != 0:
        return "only root can boot one"
    return f"missing: {', '.join(missing)}" if missing else ""


def wheels_of(root: Path) -> Path:
    """Return the folder with the packages for a machine, beside its own."""
    return root.with_name("wheels")


def page_blocks() -> list[str]:
    """Return the commands of the page for operators, a block each."""
    return re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)


class Machine:
    """A running machine: commands in it, and their output.

    Args:
        pid: its first process, as it is numbered here.
    """

    def __init__(self, pid: int) -> None:
        spaces = "--mount --uts --ipc --pid --cgroup --root --wd"
        self._enter = ("nsenter", "--target", str(pid), *spaces.split())

    @contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program beside the test, until it or the test is over."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*self._enter, *command], env=ENVIRONMENT, stdin=pipe, stdout=pipe
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(
        self, script: str, *, stdin: str = "", check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run commands as root, stopping at the first that fails."""
        done = subprocess.run(
            [*self._enter, "/bin/bash", "-euo", "pipefail", "-c", script],
            env=ENVIRONMENT | environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert not check or done.returncode == 0, (script, done.stdout, done.stderr)
        return done

    def says(self, script: str) -> str:
        """Return the output of commands."""
        return self.run(script).stdout.strip()

    def show(self, name: str, unit: str = "proxyd.service") -> str:
        """Return a property of a unit."""
        return self.says(f"systemctl show --value --property={name} {unit}")

    def journal(self, cursor: str = "") -> str:
        """Return the output of the service, from a cursor of `journal_cursor` on."""
        since = f"--after-cursor='{cursor}'" if cursor else ""
        return self.says(f"journalctl --unit=proxyd.service --output=cat {since}")

    def journal_cursor(self) -> str:
        """Return where the journal ends now."""
        return self.says("journalctl --lines=1 --show-cursor").rpartition("-- cursor: ")[2]

    def write(self, path: str, text: str) -> None:
        """Write a file, as an operator's editor does: its owner and mode stay."""
        self.run(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)


@contextmanager
def booted(root: Path, log: Path) -> Iterator[Machine]:
    """Boot the Debian in a folder, on this process' network; its changes are gone afterwards.

    Args:
        root: the folder.
        log: where the console goes.
    """
    packages = f"{wheels_of(root)}:{WHEELS}"
    with log.open("wb") as console:
        process = psutil.Popen(
            ["unshare", "--mount", "--cgroup", "/bin/sh", "-euc", BOOT, "sh", str(root), packages],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    try:
        machine = Machine(_first_process(process, log))
        until_true(lambda: _is_up(machine), lambda: _failed(machine))
        yield machine
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except psutil.TimeoutExpired:
            for each in (*process.children(recursive=True), process):
                each.kill()
            process.wait()


def _first_process(process: psutil.Popen, log: Path) -> int:
    found: list[int] = []

    def has_begun() -> bool:
        assert process.poll() is None, log.read_text()
        found[:] = [each.pid for each in process.children(recursive=True) if _is_systemd(each.pid)]
        return bool(found)

    until_true(has_begun, "a first process")
    return found[0]


def _is_systemd(pid: int) -> bool:
    """Return whether a process is systemd and the first process of its namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        name = Path(f"/proc/{pid}/exe").resolve().name
    except FileNotFoundError:
        return False
    return name == "systemd" and re.search(r"^NSpid:.*\t1$", status, re.MULTILINE) is not None


def _is_up(machine: Machine) -> bool:
    done = machine.run("systemctl is-system-running --wait", check=False)
    return done.stdout.strip() == "running"


def _failed(machine: Machine) -> str:
    return machine.run("systemctl --failed --no-pager; systemctl list-jobs", check=False).stdout


def make(root: Path) -> None:
    """Make a Debian in a folder, unless there is one, and install this version into it."""
    base.make(root, PACKAGES)
    _gather(wheels_of(root))
    _copy_this_version(root / INSTALLED)
    first = page_blocks()[0].splitlines()
    setup = next(index for index, line in enumerate(first) if line.startswith("make "))
    is_set_up = (root / INSTALLED / ".venv" / "bin" / "proxyd").exists()
    _inside(root, "\n".join(first[setup if is_set_up else 0 : setup + 1]))


def _copy_this_version(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for each in target.iterdir():
        if each.name == ".venv" or each.suffix == ".egg-info":
            continue
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _inside(root: Path, script: str) -> None:
    """Run commands on a machine that is not booted, with this one's network."""
    _call(
        *("unshare", "--mount", "/bin/sh", "-euc", f'{ALONE}; exec "$@"', "sh"),
        *("systemd-nspawn", "--quiet", "--directory", str(root), "--register=no", "--keep-unit"),
        *("--as-pid2", "--console=pipe", f"--bind-ro={wheels_of(root)}:{WHEELS}"),
        *(f"--setenv={name}={value}" for name, value in FROM_WHEELS.items()),
        *("/bin/bash", "-euo", "pipefail", "-c", script),
    )


def _gather(wheels: Path) -> None:
    """Fetch or build every pinned package as this machine's pip does, for the same Python."""
    stamp = wheels / ".complete"
    pins = ROOT / "constraints.txt"
    if stamp.exists() and stamp.stat().st_mtime > pins.stat().st_mtime:
        return
    shutil.rmtree(wheels, ignore_errors=True)
    pip = sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)
    _call(*pip, "--requirement", str(pins), "setuptools>=77")
    stamp.touch()


def _call(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Make the machine whose folder is given."""
    if why := lacking():
        sys.exit(f"make systemd: {why}")
    make(Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    main()
