"""An upgrade, a backup and its restoring, by the commands of the page for operators."""

from support.machines.installed import AS_SERVICE, EMAIL, PASSWORD, SECRETS, Service, block
from support.machines.machine import FROM_WHEELS, PROXYD


def test_an_upgrade_serves_the_new_version(running: Service, token: str) -> None:
    machine = running.machine
    version = "proxyd_build_info{version="
    metrics = "python3 -c 'import urllib.request as u; print(u.urlopen(\"{}\").read().decode())'"
    look = metrics.format("http://127.0.0.1:8080/metrics")
    assert f'{version}"0.2.0.dev0"' in machine.says(look)
    before = running.main_pid
    machine.run("sed -i '/^__version__/s/0.2.0.dev0/0.2.0.dev1/' /opt/proxyd/proxyd/__init__.py")
    machine.run(block("backup --all"), **AS_SERVICE, **FROM_WHEELS)
    assert running.main_pid != before
    assert f'{version}"0.2.0.dev1"' in machine.says(look)
    assert running.call("GET", "/auth/me", token=token)[0] == 200
    modes = machine.says("stat --format=%a /var/backups/proxyd /var/backups/proxyd/*").split()
    assert modes == ["700", "700"]


def test_a_backup_brings_back_the_earlier_state(running: Service, token: str) -> None:
    machine = running.machine
    kept = running.buy(token)["session_id"]
    machine.run(block("backup /var/lib/proxyd/copy.db"), **AS_SERVICE)
    lost = running.buy(token)["session_id"]
    machine.run(block("cp --preserve=mode"), **AS_SERVICE)
    assert running.state == "active"
    owners = machine.says("stat --format='%U %a' /var/lib/proxyd/proxyd.db*")
    # The folder with mode 700 is that of several processes.
    assert set(owners.splitlines()) <= {"proxyd 600", "root 600", "proxyd 700"}
    _, body = running.call("GET", "/api/bandwidth/sessions", token=running.log_in(EMAIL, PASSWORD))
    found = {each["id"] for each in body["sessions"]}
    assert kept in found
    assert lost not in found
    running.buy(token)


def test_the_unit_makes_a_backup_that_is_restored(running: Service, token: str) -> None:
    machine = running.machine
    kept = running.buy(token)["session_id"]
    names = ("mail-password", "signing-key")
    lines = [f"LoadCredential={name}:{SECRETS}/{name}" for name in names]
    drop_in = "/etc/systemd/system/proxyd-backup.service.d/override.conf"
    machine.run(f"mkdir -p {drop_in.rpartition('/')[0]}")
    machine.write(drop_in, "\n".join(["[Service]", *lines, ""]))
    machine.run("systemctl daemon-reload; systemctl start proxyd-backup.service")
    owners = machine.says("stat --format='%U %a' /var/lib/proxyd-backups /var/lib/proxyd-backups/*")
    assert owners.split() == ["proxyd", "700", "proxyd", "700"]
    machine.run(f"{PROXYD} restore /var/lib/proxyd-backups/* /var/lib/proxyd-trial")
    machine.run(f"grep --quiet {kept} /var/lib/proxyd-trial/proxyd.db")
    machine.run("systemctl enable --now proxyd-backup.timer")
    assert "proxyd-backup.service" in machine.says("systemctl list-timers --no-pager")
