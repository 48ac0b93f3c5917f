"""`make clients` installs missing programs, once, and never ends well without everything.

apt-get, npm and the programs are stand-ins; that the real ones exist, continuous integration shows.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.daemons.process import ROOT

PROGRAMS = (
    *("bwrap", "busybox", "chromium", "chromium-headless-shell", "curl", "docker-registry"),
    *("dockerd", "git", "newuidmap", "nginx", "node", "npm", "openssl", "podman", "proxychains4"),
    *("runc", "runsc", "systemd-analyze", "wget"),
)
TOOLS = (
    "bash",
    "cat",
    "cmp",
    "cp",
    "dirname",
    "env",
    "id",
    "make",
    "mkdir",
    "sh",
    "sleep",
    "touch",
)
# Installs by making a program of each package; `$FAILURES` makes it fail, once or always.
APT_GET = """#!/bin/sh
echo "apt-get $*" >> "$ASKED"
if test -s "$FAILURES"; then
    read -r first < "$FAILURES"; : > "$FAILURES"
    test "$first" = always && echo always > "$FAILURES"
    exit 100
fi
test "$1" = install || exit 0
for each; do
    case $each in
        install|--*|"$NEVER") ;;
        bubblewrap) cp "$BIN/true" "$BIN/bwrap" ;;
        busybox-static) cp "$BIN/true" "$BIN/busybox" ;;
        docker.io) cp "$BIN/true" "$BIN/dockerd" ;;
        uidmap) cp "$BIN/true" "$BIN/newuidmap" ;;
        nginx-light) cp "$BIN/true" "$BIN/nginx" ;;
        nodejs) cp "$BIN/true" "$BIN/node" ;;
        systemd) cp "$BIN/true" "$BIN/systemd-analyze" ;;
        npm) cp "$BIN/npm-of-debian" "$BIN/npm" ;;
        *) cp "$BIN/true" "$BIN/$each" ;;
    esac
done
"""
NPM = """#!/bin/sh
echo "npm $*" >> "$ASKED"
mkdir -p node_modules
"""


class Place:
    """A copy of the files that `make clients` uses, with a PATH of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "checkout", folder / "bin"
        self.asked_file, self.failures = folder / "asked", folder / "failures"
        (self.root / "tests").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", self.root)
        ignored = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / "tests" / "clients", self.root / "tests" / "clients", ignore=ignored)
        shutil.copytree(ROOT / ".ci", self.root / ".ci")
        self.bin.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.write("true", "#!/bin/sh\n")
        self.write("npm-of-debian", NPM)
        self.write("apt-get", APT_GET)

    def write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def has(self, *programs: str) -> None:
        """Put programs there."""
        for name in programs:
            self.write(name, NPM if name == "npm" else "#!/bin/sh\n")

    def run(self, *command: str, never: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.root,
            env={
                "PATH": str(self.bin),
                "BIN": str(self.bin),
                "ASKED": str(self.asked_file),
                "FAILURES": str(self.failures),
                "NEVER": never or "nothing",
                "CLIENTS_PAUSE_SECONDS": "0",
                "PYTHON": "true",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def asked(self) -> list[str]:
        """Calls of apt-get and npm."""
        return self.asked_file.read_text().splitlines() if self.asked_file.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    # The tests may run as anybody; the stand-ins are the same for all.
    made.write("sudo", '#!/bin/sh\ntest "$1" = -n && shift\nexec "$@"\n')
    return made


def test_all_that_is_missing_is_installed_and_then_nothing(place: Place) -> None:
    place.has("curl", "git")
    done = place.run("make", "clients")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("make clients: every client is here\n")
    packages = (
        "bubblewrap busybox-static chromium chromium-headless-shell docker-registry docker.io "
        "uidmap nginx-light nodejs npm openssl podman proxychains4 runc runsc systemd wget"
    )
    assert place.asked == [
        "apt-get update",
        f"apt-get install --yes --no-install-recommends {packages}",
        "npm install --no-package-lock --ignore-scripts --no-audit --no-fund",
    ]
    before = place.asked
    again = place.run("make", "clients")
    assert (again.returncode, again.stdout) == (0, "make clients: every client is here\n")
    assert place.asked == before


def test_packages_of_node_are_fetched_anew_when_their_list_has_changed(place: Place) -> None:
    place.has(*PROGRAMS)
    place.run("make", "clients")
    package = place.root / "tests" / "clients" / "package.json"
    package.write_text(package.read_text().replace("2.8.7", "2.8.8"))
    assert place.run("make", "clients").returncode == 0
    assert [line.split()[0] for line in place.asked] == ["npm", "npm"]


def test_an_index_that_fails_once_is_asked_again(place: Place) -> None:
    place.failures.write_text("once\n")
    assert place.run("make", "clients").returncode == 0
    assert [line.split()[1] for line in place.asked[:3]] == ["update", "update", "install"]


def fails(place: Place, words: str, **how: str) -> None:
    done = place.run("make", "clients", **how)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("make clients: not")]
    assert len(said) == 1, done.stderr
    assert words in said[0]
    assert "every client is here" not in done.stdout


def test_an_index_that_fails_twice_is_reported(place: Place) -> None:
    place.failures.write_text("always\n")
    fails(place, "apt-get update failed twice")
    assert place.asked == ["apt-get update"] * 2


def test_a_program_that_is_still_missing_is_named(place: Place) -> None:
    fails(place, "had nothing to say: chromium", never="chromium")


def test_another_kind_of_system_is_reported(place: Place) -> None:
    place.has(*PROGRAMS)
    (place.bin / "chromium").unlink()
    (place.bin / "apt-get").unlink()
    fails(place, "chromium; there is no apt-get")


def test_continuous_integration_tests_with_every_client_or_not_at_all(place: Place) -> None:
    makefile = place.root / "Makefile"
    makefile.write_text(
        makefile.read_text().replace("\ntest: setup\n", "\ntest:\n\t@echo tested\n\nold:\n")
    )
    place.has(*PROGRAMS)
    done = place.run("bash", ".ci/run")
    assert (done.returncode, done.stdout) == (0, "make clients: every client is here\ntested\n")
    (place.bin / "chromium").unlink()
    (place.bin / "apt-get").unlink()
    done = place.run("bash", ".ci/run")
    assert done.returncode != 0
    assert "tested" not in done.stdout
    assert "make clients: not installed: chromium" in done.stderr
