"""A confined process reaches its folder alone, even if all of its code is a stranger's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pythons import NEWEST, OLDEST, pythons

import proxyctl
from proxyctl.worker.files.confinement import MEMORY_BYTES

ORDINARY_UID = 61_234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Attempts of a stranger with control over the process, one in each line.
ATTEMPTS = """
open("/etc/passwd").read()
open("/etc/passwd-", "w")
open({outside!r}).read()
open({outside!r}, "w")
open("../outside").read()
other_than_the_folder(os.open("..", os.O_RDONLY, dir_fd=folder))
os.open("../outside", os.O_RDONLY, dir_fd=folder)
os.open("link", os.O_RDONLY, dir_fd=folder)
open("/proc/self/status").read()
open("/proc/%d/mem" % parent, "r+b")
os.unlink({outside!r})
os.rename({outside!r}, "taken")
os.link({outside!r}, "taken")
os.chmod({outside!r}, 0o777)
os.mkdir({outside!r} + ".d")
os.symlink("x", {outside!r} + ".link")
os.truncate({outside!r}, 0)
os.mkfifo("pipe")
os.mknod("device", 0o20666, os.makedev(1, 1))
os.chown("mine", 0, 0)
socket.socket(socket.AF_INET)
socket.socket(socket.AF_UNIX)
socket.socketpair()
os.fork()
os.execv("/bin/sh", ["sh"])
os.kill(parent, 0)
os.kill(os.getpid(), 0)
os.setuid(0)
os.setresuid(0, 0, 0)
os.setgroups([0])
os.chroot("/")
checked(library.unshare(0x10000000))
checked(library.mount(b"none", b"/", b"tmpfs", 0, None))
checked(library.ptrace(16, parent, 0, 0))
checked(library.prctl(22, 0, 0, 0, 0))
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
bytearray({memory})
""".strip().split("\n")

PROGRAM = """
import ctypes, json, os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
from proxyctl.worker.files import confinement
request = json.loads(sys.argv[2])
library = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def other_than_the_folder(descriptor):
    if os.path.sameopenfile(descriptor, folder):
        raise OSError("the root directory is its own parent")
def refused(*_):
    raise PermissionError(1, "not here")
if request["uid"]:
    os.setgroups([])
    os.setgid(request["uid"])
    os.setuid(request["uid"])
    library.prctl(4, 1, 0, 0, 0)
if "root" not in request["walls"]:
    os.chroot = refused
if "landlock" not in request["walls"]:
    confinement._landlock_rules = lambda *_: (None, 0)
folder = os.open(request["folder"], os.O_RDONLY)
try:
    walls = confinement.confine(folder, parent, 1000, request["user"])
except confinement.ConfinementError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
results = {}
for attempt in request["attempts"]:
    try:
        exec(attempt)
        results[attempt] = "succeeded"
    except (OSError, MemoryError, ValueError) as error:
        results[attempt] = type(error).__name__
for name in ("mine", "new"):
    with open(name, "w") as file:
        file.write(name)
results["large"] = "succeeded"
try:
    with open("large", "wb", 0) as file:
        file.write(bytes(1000))
        file.write(b"x")
except OSError as error:
    results["large"] = os.strerror(error.errno)
print(json.dumps({"walls": vars(walls), "results": results}))
"""


def confined(
    folder: Path, walls: str, *, uid: int = 0, python: str = sys.executable
) -> dict[str, Any]:
    """Run all attempts in a process with these walls alone. Return their results."""
    for each in (folder.parent, *folder.parent.parents):
        if each != Path("/"):
            each.chmod(each.stat().st_mode | 0o055)  # no mode of a folder may be the wall
    folder.mkdir()
    outside = folder.parent / "outside"
    outside.write_bytes(b"mine")
    (folder / "link").symlink_to(outside)
    (folder / "mine").write_bytes(b"")
    for path in (folder, folder / "mine"):
        os.chown(path, uid or ORDINARY_UID, uid or ORDINARY_UID)
    request = {
        "folder": str(folder),
        "walls": walls,
        "uid": uid,
        "user": ORDINARY_UID,
        "attempts": [each.format(outside=str(outside), memory=MEMORY_BYTES) for each in ATTEMPTS],
    }
    root = str(Path(proxyctl.__file__).parent.parent)
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, root, json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert outside.read_bytes() == b"mine"
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@needs_root
@pytest.mark.parametrize("uid", [0, ORDINARY_UID], ids=["root", "ordinary"])
@pytest.mark.parametrize("walls", ["root landlock", "root", "landlock"])
def test_a_confined_process_reaches_its_folder_alone(tmp_path: Path, walls: str, uid: int) -> None:
    said = confined(tmp_path / "folder", walls, uid=uid)
    assert said["walls"]["root"] == ("root" in walls)
    assert bool(said["walls"]["landlock"]) == ("landlock" in walls)
    assert said["walls"]["network"]
    assert said["walls"]["user"] == ORDINARY_UID
    large = said["results"].pop("large")
    assert large == "File too large"
    assert [each for each, result in said["results"].items() if result == "succeeded"] == []
    assert (tmp_path / "folder" / "new").read_bytes() == b"new"


@needs_root
@pytest.mark.parametrize("python", pythons(OLDEST, NEWEST))
def test_every_python_is_confined(tmp_path: Path, python: str) -> None:
    said = confined(tmp_path / "folder", "root landlock", python=python)
    assert [each for each, result in said["results"].items() if result == "succeeded"] == []


@needs_root
@pytest.mark.parametrize("uid", [0, ORDINARY_UID], ids=["root", "ordinary"])
def test_a_process_is_not_started_without_a_wall(tmp_path: Path, uid: int) -> None:
    said = confined(tmp_path / "folder", "", uid=uid)
    assert said["error"] == "this device has neither Landlock nor user namespaces for that"
