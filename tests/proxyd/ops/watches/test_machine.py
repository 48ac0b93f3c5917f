"""Disks and certificates: their figures, and the alerts that follow."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.targets.tls import make_certificate

from config.settings import (
    ApiSettings,
    AppSettings,
    ExitSettings,
    Settings,
    StaffSettings,
    StorageSettings,
)
from market.staff.site.alerts import Finding, Looked
from proxyd.loop import clock
from proxyd.ops.watches.alert_watch import AlertWatch, Upkeep
from proxyd.ops.watches.machine import Machine


class Receiver:
    """Takes the findings of a look."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    async def look(self, findings: list[Finding]) -> Looked:
        self.found = findings
        return Looked(None, None)


async def test_a_full_disk_an_old_certificate_and_lost_records_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificate(tmp_path).path
    settings = Settings(
        api=ApiSettings(tls_cert=str(made)),
        storage=StorageSettings(url=f"sqlite:///{tmp_path}/proxyd.db"),
    )
    receiver, upkeep, dropped = Receiver(), Upkeep(), [0]
    watch = AlertWatch(
        receiver,  # type: ignore[arg-type] # it only looks
        Machine(settings, tmp_path / "work"),
        upkeep,
        lambda: dropped[0],
        clock.seconds,
    )
    await watch.look()
    assert 0 < upkeep.free["database"] <= 1
    assert "work" not in upkeep.free  # it does not exist yet
    kinds: dict[str, Any] = {each.kind: each.text for each in receiver.found}
    assert kinds.keys() <= {"certificate", "disk"}
    usage = SimpleNamespace(free=9, total=100)
    monkeypatch.setattr("proxyd.ops.watches.machine.shutil.disk_usage", lambda _: usage)
    made.write_bytes(b"damaged")
    dropped[0] = 7
    await watch.look()
    kinds = {each.kind: each.text for each in receiver.found}
    assert kinds.keys() == {"certificate", "disk", "access_log"}
    assert "9 % left" in kinds["disk"]
    assert len(receiver.found) == len(kinds)
    assert kinds["access_log"].startswith("7 access records")
    await watch.look()
    assert "access_log" not in {each.kind for each in receiver.found}


async def test_one_alert_names_each_full_disk_and_each_old_certificate() -> None:
    receiver, machine = Receiver(), Failing()
    watch = AlertWatch(
        receiver,  # type: ignore[arg-type] # it only looks
        machine,  # type: ignore[arg-type] # its figures
        Upkeep(),
        lambda: 0,
        clock.seconds,
    )
    await watch.look()
    texts = {each.kind: each.text for each in receiver.found}
    assert len(receiver.found) == 2  # the second one of a kind would wait for ever
    assert texts["disk"] == (
        "The disk of the folder work has 9 % left. The disk of the folder database has 1 % left."
    )
    assert "api.tls_cert expires in 3 days" in texts["certificate"]
    assert "exits.tls_cert expires in 0 days" in texts["certificate"]


class Failing:
    """A machine without room and with old certificates."""

    def free(self) -> dict[str, float]:
        return {"work": 0.09, "database": 0.01}

    def certificates(self, _: int) -> dict[str, int]:
        return {"api": 3 * 86_400, "exits": 0}


def test_every_listener_and_the_usual_folder_of_the_access_log_are_watched(tmp_path: Path) -> None:
    path = str(make_certificate(tmp_path).path)
    (tmp_path / "access").mkdir()
    settings = Settings(
        api=ApiSettings(tls_cert=path),
        exits=ExitSettings(host="127.0.0.1", tls_cert=path),
        apps=AppSettings(tls_cert=path),
        staff=StaffSettings(tls_cert=path),
        storage=StorageSettings(url=f"sqlite:///{tmp_path}/proxyd.db"),
    )
    machine = Machine(settings, tmp_path / "work")
    assert machine.free().keys() == {"database", "access_log"}
    assert machine.certificates(clock.seconds()).keys() == {"api", "exits", "apps", "staff"}
