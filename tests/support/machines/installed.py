"""proxyd as a service on a machine, installed by the page for operators."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from support.base.waiting import until_true
from support.daemons.process import Api
from support.machines.machine import PROXYD, Machine, page_blocks

CONFIG = "/etc/proxyd/proxyd.toml"
SECRETS = "/etc/proxyd/secrets"
DATABASE = "/var/lib/proxyd/proxyd.db"
DROP_INS = "/etc/systemd/system/proxyd.service.d"
AS_SERVICE = {"CREDENTIALS_DIRECTORY": SECRETS}
EMAIL, PASSWORD = "ada@example.com", "long enough"
SIGNING_KEY = "a key that signs, of thirty-two bytes or more"
MAIL_PASSWORD = "the password"
SETTINGS = {
    "storage.url": f'"sqlite:///{DATABASE}"',
    "proxy.host": '"0.0.0.0"',
    "proxy.public_host": '"127.0.0.1"',
    "proxy.passwordless_ports": "[1081]",
    "egress.allow": '["127.0.0.0/8"]',
    "auth.signing_key": '"@signing-key"',
    "mail.host": '"127.0.0.1"',
    "mail.password": '"@mail-password"',
    "limits.requests_per_second": "0",
    "limits.drain_seconds": "5.0",
}


def block(words: str) -> str:
    """Return the commands of the page, of the one block that holds these words."""
    found = [each for each in page_blocks() if words in each]
    assert len(found) == 1, (words, found)
    return found[0]


class Service(Api):
    """The service on a machine, its settings, and its API."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("http://127.0.0.1:8080", 1080)
        self.machine = machine

    def install(self) -> None:
        """Follow the page, up to the first start; fetching has been done before."""
        commands = block("systemd-sysusers").splitlines()
        fetching = next(i for i, line in enumerate(commands) if line.startswith("make "))
        self.machine.run("\n".join(commands[fetching + 1 :]))
        self.machine.run(block("the password"))
        self.machine.run(f"umask 077; cat > {SECRETS}/signing-key", stdin=SIGNING_KEY)
        self.configure()
        self.drop_in(
            "override",
            f"LoadCredential=mail-password:{SECRETS}/mail-password",
            f"LoadCredential=signing-key:{SECRETS}/signing-key",
        )
        self.machine.run(block("enable --now"), **AS_SERVICE)
        create = f"{PROXYD} user create {EMAIL} --username ada --password-stdin --config {CONFIG}"
        self.machine.run(create, stdin=f"{PASSWORD}\n", **AS_SERVICE)
        self.machine.run(block("wallet deposit"), **AS_SERVICE)

    def configure(self, **changed: str) -> None:
        """Write the settings: the example with ours, some of them changed (`limits__dial=…`)."""
        text = self.machine.says("cat /opt/proxyd/config/proxyd.example.toml") + "\n"
        named = {name.replace("__", "."): value for name, value in changed.items()}
        for name, value in (SETTINGS | named).items():
            section, _, key = name.partition(".")
            pattern = rf"(^\[{section}\]\n(?:[^\[].*\n|\n)*?{key} = )[^#\n]*"
            text, number = re.subn(pattern, lambda m, v=value: m[1] + v, text, flags=re.MULTILINE)
            assert number == 1, name
        self.machine.write(CONFIG, text)

    def drop_in(self, name: str, *lines: str) -> None:
        """Add lines to the unit's [Service], as `systemctl edit` does."""
        self.machine.write(f"{DROP_INS}/{name}.conf", "\n".join(["[Service]", *lines, ""]))
        self.machine.run("systemctl daemon-reload")

    def remove_drop_in(self, name: str) -> None:
        self.machine.run(f"rm {DROP_INS}/{name}.conf; systemctl daemon-reload")

    @contextmanager
    def changed(self, *lines: str, **settings: str) -> Iterator[None]:
        """Run it with another unit and other settings for a while."""
        self.configure(**settings)
        self.drop_in("changed", *lines)
        self.machine.run("systemctl restart proxyd.service")
        try:
            yield
        finally:
            self.configure()
            self.remove_drop_in("changed")
            self.set_right()

    def set_right(self) -> None:
        """Start it from any state."""
        self.machine.run(block("reset-failed"))
        self.machine.run("systemctl restart proxyd.service")

    @property
    def main_pid(self) -> int:
        """Return the number of its process on the machine, 0 when it has no process."""
        return int(self.machine.show("MainPID"))

    @property
    def state(self) -> str:
        return self.machine.show("ActiveState")

    def of_process(self, file: str) -> str:
        """Return a file of its process' in /proc."""
        return self.machine.says(f"tr '\\0' '\\n' < /proc/{self.main_pid}/{file}")

    def open_files(self) -> str:
        """Return the open descriptors of its process, a line each; nothing without one."""
        return self.machine.run(f"ls -l /proc/{self.main_pid}/fd", check=False).stdout

    def wait_for_line(self, line: str, cursor: str) -> None:
        """Wait until the journal has something new of the service."""
        until_true(
            lambda: line in self.machine.journal(cursor),
            lambda: f"{line!r} in {self.machine.journal(cursor)}",
        )

    def audit(self) -> str:
        """Return the output of the audit, which must agree."""
        command = f"{PROXYD} ledger audit --config {CONFIG}"
        return self.machine.run(command, **AS_SERVICE).stdout
