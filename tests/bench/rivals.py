"""The servers that proxyd is measured beside: dante, microsocks, pproxy, and any that are given."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.servers import Kind, words

PACKAGES = {"danted": "dante-server", "microsocks": "microsocks"}
SBIN = "/usr/sbin:/sbin"

# dante takes passwords from the system's own file. It is given one of its own, which only its
# process sees, with the cheapest hash that the file can hold (DES), of "benchpwd".
DANTE = """\
logoutput: /dev/null
internal: {host} port = {port}
external: {host}
clientmethod: none
socksmethod: username
user.privileged: root
user.unprivileged: nobody
client pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }
socks pass { from: 0.0.0.0/0 to: 0.0.0.0/0 command: connect }
"""
PASSWD = """\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
bench:x:65533:65534::/nonexistent:/usr/sbin/nologin
"""
SHADOW = """\
root:*:19000:0:99999:7:::
nobody:*:19000:0:99999:7:::
bench:bevZcXj7DFCCY:19000:0:99999:7:::
"""
DANTE_START = (
    "mount --bind {folder}/passwd /etc/passwd && mount --bind {folder}/shadow /etc/shadow"
    " && exec danted -f {folder}/danted.conf"
)

# pproxy picks uvloop where that is installed, and relies on a current loop, which a recent uvloop
# no longer makes.
PPROXY_START = """\
import asyncio, uvloop
uvloop.install = lambda: asyncio.set_event_loop(uvloop.new_event_loop())
from pproxy.server import main
main()
"""


class RivalError(Exception):
    """The list of further servers cannot be read; the message says why."""


def install() -> None:
    """Install the packages that are missing where that is possible; else print the command."""
    missing = [package for program, package in PACKAGES.items() if not _found(program)]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"to measure beside them: apt-get install {' '.join(missing)}", file=sys.stderr)
        return
    print(f"installing {' '.join(missing)}", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *missing]
    for each in (["apt-get", "update", "--quiet"], command):
        subprocess.run(each, env=quiet, stdout=subprocess.DEVNULL, check=True)


def usual() -> tuple[list[Kind], list[str]]:
    """Return the rivals that can run here, and why the others cannot."""
    kinds, reasons = [], []
    if not _found("danted"):
        reasons.append("dante: apt-get install dante-server")
    elif os.geteuid() != 0:
        reasons.append("dante: it checks passwords as root alone")
    else:
        files = {"danted.conf": DANTE, "passwd": PASSWD, "shadow": SHADOW}
        kinds.append(Kind("dante", ("unshare", "-m", "sh", "-c", DANTE_START), files))
    if _found("microsocks"):
        command = words("microsocks -i {host} -p {port} -u {user} -P {password}")
        kinds.append(Kind("microsocks", command))
    else:
        reasons.append("microsocks: apt-get install microsocks")
    if importlib.util.find_spec("pproxy") is not None:
        listen = "socks5://{host}:{port}#{user}:{password}"
        kinds.append(
            Kind("pproxy", (sys.executable, "-W", "ignore", "-c", PPROXY_START, "-l", listen))
        )
    else:
        reasons.append("pproxy: it is not installed in the virtual environment")
    return kinds, reasons


def named(text: str) -> list[Kind]:
    """Read further servers: `name=command; name=command`.

    In a command {host}, {port}, {user} and {password} stand for the values of the server, and
    {config:PATH} for a copy of a file with these values filled in. A command with {device}, which
    stands for the prefix that places the device's part, is a tunnel: it is measured beside exits.

    Raises:
        RivalError: an entry has no name or no command, or its file cannot be read.
    """
    return [_kind(*entry.partition("=")[::2]) for entry in text.split(";") if entry.strip()]


def is_tunnel(kind: Kind) -> bool:
    """Return whether a server has a part at a device, and so is measured only beside exits."""
    return any("{device}" in each for each in kind.command)


def _kind(name: str, command: str) -> Kind:
    name, command = name.strip(), command.strip()
    if not name or not command:
        raise RivalError(f"a rival is written name=command, not {name or command!r}")
    files: dict[str, str] = {}

    def copied(found: re.Match[str]) -> str:
        try:
            files[f"config{len(files)}"] = Path(found[1]).read_text()
        except OSError as error:
            raise RivalError(f"{name}: cannot read {found[1]}: {error.strerror}") from error
        return f"{{folder}}/config{len(files) - 1}"

    filled = re.sub(r"\{config:([^}]+)\}", copied, command)
    return Kind(name, words(filled), files)


def _found(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ['PATH']}:{SBIN}") is not None
