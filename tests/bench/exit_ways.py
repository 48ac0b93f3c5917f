"""The servers of the section about exits: proxyd with a device, and `ssh -R` to one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.base.ports import free_port
from support.daemons import process

from bench import bought
from bench.servers import HERE, LOOPBACK, Kind, Place

EXIT, PORTABLE, SSH = "proxyd, exit", "proxyd, exit by asyncio", "ssh -R"
SHIPPED = "proxyd, exit as shipped"  # with the default limits
WITHOUT_SPLICE = {"PROXYCTL_RELAY": "asyncio"}
WISH = "-country-xx"
# Limits that an owner would not lift for strangers: a benchmark opens more at once, and faster.
UNBOUND = {"connections": 0, "bytes_per_day": 0, "dials_per_second": 1_000_000}

SSHD_CONFIG = """\
Port {sshd_port}
ListenAddress {sshd_host}
HostKey {folder}/host.key
AuthorizedKeysFile {folder}/device.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
AllowTcpForwarding yes
GatewayPorts clientspecified
LogLevel ERROR
"""
# The device forwards a port of the server to a SOCKS5 server of its own: OpenSSH's own (`-R PORT`
# alone) knows no passwords.
SSH_START = """\
umask 077
cp {folder}/host {folder}/host.key
cp {folder}/device {folder}/device.key
mkdir -p /run/sshd
{sshd} -D -e -f {folder}/sshd.conf &
{prefix} microsocks -i 127.0.0.1 -p {socks_port} -u {user} -P {password} 2>/dev/null &
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    {prefix} ssh -N -p {sshd_port} -i {folder}/device.key -o ExitOnForwardFailure=yes \
        -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
        -R {host}:{port}:127.0.0.1:{socks_port} {sshd_host} && break
    sleep 0.2
done
"""


@dataclass(frozen=True)
class ExitWay:
    """A daemon whose session leaves through a device; `kind_at` makes it a server to measure.

    Attributes:
        name: of the server.
        bought: the daemon and its session.
        device: the folder of the device.
        exits_port: where it attaches.
        environment: of the device.
        limits: of the device, where they are not the usual ones.
        checkout: whose daemon runs.
        has_agent: whether the device also runs.
    """

    name: str
    bought: bought.Bought
    device: Path
    exits_port: int
    environment: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=UNBOUND.copy)
    checkout: Path = process.ROOT
    has_agent: bool = True

    def kind_at(self, here: Place = HERE, there: Place = HERE) -> Kind:
        """Return it with the daemon in one place and the device in another."""
        record = self.device / "exit.json"
        agreed = json.loads(record.read_text())
        limits = {**agreed["limits"], **self.limits}
        changed = {"host": here.host, "port": self.exits_port, "limits": limits}
        record.write_text(json.dumps({**agreed, **changed}))
        order = {
            "exits_port": self.exits_port,
            "device": os.fspath(self.device),
            "prefix": there.prefix,
            "environment": self.environment,
            "checkout": os.fspath(self.checkout),
            "has_agent": self.has_agent,
        }
        kind = self.bought.kind
        return replace(
            kind,
            name=self.name,
            command=(sys.executable, "-m", "bench.exit_pair", json.dumps(order)),
            environment={
                **kind.environment,
                "PYTHONPATH": f".{os.pathsep}tests",
                "PROXYD_EXITS__HOST": here.host,
            },
            user=kind.user + WISH,
        )


def exits_environment(port: int, targets: Sequence[int]) -> dict[str, str]:
    """Return the settings of a daemon with exits that lift every limit on speed.

    Args:
        port: where exits attach.
        targets: the ports that they may reach.
    """
    return {
        "PROXYD_EXITS__HOST": LOOPBACK,
        "PROXYD_EXITS__PORT": str(port),
        "PROXYD_EXITS__PORTS": json.dumps(targets),
        "PROXYD_EXITS__CONNECTIONS": "1000",
        "PROXYD_EXITS__BYTES_PER_DAY": "0",
        "PROXYD_GEO__KNOWN": '{"127.0.0.0/8": "xx", "10.0.0.0/8": "xx"}',
    }


def proxyd_ways(folder: Path, targets: Sequence[int]) -> list[ExitWay]:
    """Set proxyd up with a device, for each way in which that relays, and as it is shipped.

    See `exits_environment`.
    """
    relays = {EXIT: {}, PORTABLE: WITHOUT_SPLICE, SHIPPED: {}}
    return [
        replace(
            exit_way(folder / f"exit{number}", name, targets),
            environment=environment,
            limits={} if name == SHIPPED else UNBOUND,
        )
        for number, (name, environment) in enumerate(relays.items())
    ]


def exit_way(folder: Path, name: str, targets: Sequence[int]) -> ExitWay:
    """Set proxyd up with a device that has no limits, in a new folder."""
    folder.mkdir()
    port = free_port()
    settings = exits_environment(port, targets)
    sold = bought.proxyd(folder, name, settings)
    device = folder / "device"
    _agree(f"sqlite:///{folder}/proxyd.db", device, settings)
    return ExitWay(name, sold, device, port)


def _agree(url: str, folder: Path, settings: dict[str, str]) -> None:
    """Make an owner with a device, and agree to the terms in the account and at the device."""
    email, password = process.funded(url, name="owner")
    with process.serving(url, **{**settings, "PROXYD_EXITS__PORT": "0"}) as daemon:
        token = daemon.log_in(email, password)
        body = {"name": "box", "device_type": "mini_pc"}
        _, made = daemon.call("POST", "/api/worker/token/create", body, token)
        _, terms = daemon.call("GET", "/api/exits/terms")
        agreed = {"token_id": made["token_id"], "terms_hash": terms["terms_hash"]}
        status, answer = daemon.call("POST", "/api/worker/exit/consent", agreed, token)
        assert status == 200, answer
        folder.mkdir(mode=0o700)
        secret = folder / "token"
        secret.write_text(made["token"])
        subprocess.run(
            [
                *(sys.executable, "-m", "proxyctl", "exit", "consent", "--api", daemon.api),
                *("--token-file", os.fspath(secret), "--folder", os.fspath(folder)),
            ],
            env={**process.environment(""), "PYTHONPATH": os.fspath(process.ROOT / "client")},
            input=b"yes\n",
            stdout=subprocess.DEVNULL,
            check=True,
        )
        assert daemon.stop() == 0, daemon.output


def ssh_way(folder: Path) -> Callable[[Place, Place], Kind] | str:
    """Return a function that makes `ssh -R` a server to measure, or the reason against it."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh") is None or os.geteuid() != 0:
        return "ssh -R: it needs root (apt-get install openssh-server openssh-client)"
    if shutil.which("microsocks") is None:
        return "ssh -R: its device needs microsocks (apt-get install microsocks)"
    keys = {}
    for name in ("host", "device"):
        path = folder / f"{name}-key"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.fspath(path)]
        subprocess.run(command, check=True)
        keys[name] = path.read_text()
        keys[f"{name}.pub"] = path.with_suffix(".pub").read_text()

    def kind_at(here: Place = HERE, there: Place = HERE) -> Kind:
        known = {
            "{sshd}": sshd,
            "{sshd_host}": here.host,
            "{sshd_port}": str(free_port()),
            "{socks_port}": str(free_port()),
            "{prefix}": " ".join(there.prefix),
        }
        start, config = SSH_START, SSHD_CONFIG
        for name, value in known.items():
            start, config = start.replace(name, value), config.replace(name, value)
        return Kind(SSH, ("sh", "-c", start), {**keys, "sshd.conf": config})

    return kind_at


def named_way(kind: Kind) -> Callable[[Place, Place], Kind]:
    """Return a function that makes a given tunnel a server to measure.

    In its command {device} stands for the prefix that places the device's part.
    """

    def kind_at(_here: Place = HERE, there: Place = HERE) -> Kind:
        prefix = " ".join(there.prefix)
        return replace(
            kind, command=tuple(each.replace("{device}", prefix) for each in kind.command)
        )

    return kind_at
