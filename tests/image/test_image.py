"""The container image: started by the commands of its page, used, stopped, and started again."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons.process import ROOT, Api
from support.workers.engines import podman_storage

PAGE = ROOT / "docs/how-to/containers.md"
API = Api("http://127.0.0.1:8080", 1080)
LOGIN = "ada@example.com", "a long password"
# Podman's own bridge: the daemon fetches a page of itself through its proxy.
EGRESS = r"(?m)^allow = \[\]  ", 'allow = ["10.88.0.0/16"]  '
DRAIN_SECONDS = 30


def blocks() -> list[str]:
    """Return the commands of the page, a block each."""
    return re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)


def say(*command: str) -> str:
    """Run a program, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the archive of the image, and a podman that keeps nothing."""
    if os.environ.get("PROXYD_IMAGE") is None:
        pytest.skip("`make containers` runs it, as root: it needs an image")
    (tmp_path / "proxyd.image.tar").symlink_to(Path(os.environ["PROXYD_IMAGE"]).resolve())
    # Where root may not raise limits, podman's own ones are refused.
    most = os.sysconf("SC_OPEN_MAX")
    settings = tmp_path / "containers.conf"
    settings.write_text(
        f'[containers]\ndefault_ulimits = ["nofile={most}:{most}", "nproc=4096:4096"]\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", str(settings))
    with podman_storage():
        yield tmp_path


class Page:
    """A shell that follows the page, one block after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = folder / "kept"  # variables and functions of earlier blocks
        self._kept.write_text("")

    def follow(self, words: str) -> str:
        """Run the one block that has some words; return its output."""
        [block] = [each for each in blocks() if words in each]
        script = f". ./kept\n{block}\n{{ declare -p IMAGE FILES; declare -f; }} > kept 2>/dev/null"
        done = subprocess.run(
            ["/bin/bash", "-uc", f"set -e; {script} || true"],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout


def test_the_image_serves_stops_in_time_and_keeps_its_data(folder: Path) -> None:
    page = Page(folder)
    page.follow("podman load")
    page.follow("public_host")
    page.follow("signing-key")
    settings = folder / "proxyd.toml"
    text, number = re.subn(*EGRESS, settings.read_text())
    assert number == 1
    assert '"@/etc/proxyd/secrets/signing-key"' in text
    settings.write_text(text)
    page.follow("config check")
    page.follow("user create")

    # The walk-through: register, deposit, buy, fetch through the proxy, end.
    token = API.log_in(*LOGIN)
    proxy = API.buy(token)["proxy"]
    address = say("podman", "inspect", "--format", "{{.NetworkSettings.IPAddress}}", "proxyd")
    line = f"socks5h://{proxy['username']}:{proxy['password']}@127.0.0.1:1080"
    assert '"ok":true' in say("curl", "-sS", "--proxy", line, f"http://{address}:8080/healthz")

    # An unprivileged user, on a root that is read-only.
    inside = ("podman", "exec", "proxyd")
    assert say(*inside, "id", "-u") == "10001"
    assert "NoNewPrivs:\t1" in say(*inside, "cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in say(*inside, "cat", "/proc/1/status")
    refused = subprocess.run(
        [*inside, "touch", "/usr/lib/proxyd/x", "/etc/x"], capture_output=True, check=False
    )
    assert refused.stderr.count(b"Read-only file system") == 2
    assert "(compiled)" in say(*inside, "proxyd", "--version")
    assert say("podman", "diff", "proxyd").count("/var/lib/proxyd/") == 0

    page.follow("backup --all")
    [backup] = [each for each in (folder / "backups").iterdir() if each.is_dir()]
    assert (backup / "MANIFEST").exists()

    # SIGTERM ends it in time, and a new container has the data: the old token stays valid.
    began = time.monotonic()
    page.follow("podman rm proxyd")
    assert time.monotonic() - began < DRAIN_SECONDS
    until_true(is_ready, "the daemon is ready again")
    assert API.call("GET", "/auth/me", token=token)[0] == 200
    [session] = API.call("GET", "/api/bandwidth/sessions", token=token)[1]["sessions"]
    assert session["bytes_used"] > 0
    say(*inside, "proxyd", "ledger", "audit", "--config", "/etc/proxyd/proxyd.toml")
    say("podman", "stop", "proxyd")
    assert say("podman", "inspect", "--format", "{{.State.ExitCode}}", "proxyd") == "0"


def is_ready() -> bool:
    """Return whether the health command of the image succeeds."""
    command = ["podman", "exec", "proxyd", "proxyd", "health", "--config"]
    done = subprocess.run(
        [*command, "/etc/proxyd/proxyd.toml"], capture_output=True, check=False, timeout=20
    )
    return done.returncode == 0
