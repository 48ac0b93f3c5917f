"""Every setting that is marked as reloadable has its effect at SIGHUP, and no other one has."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.daemons.process import ROOT
from support.daemons.service import TEST_SETTINGS, Service, running_in

from config.load import load
from config.settings import LimitSettings, reloadable
from proxyd.ops.access_log.abuse_watch import Thresholds
from proxyd.wiring.daemon import Daemon
from proxyd.wiring.reload import reload


def _thresholds(daemon: Daemon) -> Thresholds:
    """Return the figures of the rules, of the daemon's access log."""
    log = daemon.helpers.access_log
    assert log is not None
    assert log._watch is not None
    return log._watch._thresholds


# The value in the running daemon that each setting changes.
EFFECTS: dict[str, Callable[[Daemon], Any]] = {
    "log.level": lambda _: logging.getLogger().level,
    "log.format": lambda _: {type(each.formatter) for each in logging.getLogger().handlers},
    "limits.handshake_seconds": lambda daemon: daemon.gateway._clients.handshakes.seconds,
    "limits.dial_seconds": lambda daemon: daemon.gateway._for_connections.exit.deadlines.seconds,
    "limits.idle_seconds": lambda daemon: daemon.gateway.limits.idle_seconds,
    "limits.drain_seconds": lambda daemon: daemon.settings.limits.drain_seconds,
    "limits.connections_per_session": lambda daemon: daemon.core.meter.connections_per_session,
    "limits.session_datagrams_per_second": (
        lambda daemon: daemon.gateway._for_connections.datagrams.allows
    ),
    "limits.connections_per_address": lambda daemon: daemon.gateway.limits.connections_per_address,
    "limits.connections_total": lambda daemon: daemon.gateway.limits.connections_total,
    "limits.dials_waiting": lambda daemon: daemon.gateway._for_connections.dials.most,
    "limits.requests_per_second": lambda daemon: daemon.http._limits.requests_per_second,
    "limits.requests_per_second_of_user": (
        lambda daemon: daemon.http._limits.requests_per_second_of_user
    ),
    "limits.api_connections_per_network": (
        lambda daemon: daemon.http._limits.connections_per_network
    ),
    "limits.api_connections_total": lambda daemon: daemon.http._limits.connections,
    "limits.api_bytes_per_network": lambda daemon: daemon.http._limits.memory_per_network,
    "limits.api_bytes_total": lambda daemon: daemon.http._limits.memory,
    "limits.api_stall_seconds": lambda daemon: daemon.http._limits.stall_seconds,
    "limits.event_streams": lambda daemon: daemon.market.event_feed.terms.streams,
    "limits.sessions_per_user": lambda daemon: daemon.market.bounds().sessions,
    "limits.addresses_per_user": lambda daemon: daemon.market.bounds().addresses,
    "limits.jobs_per_user": lambda daemon: daemon.market.bounds().jobs,
    "limits.free_jobs_per_user": lambda daemon: daemon.market.bounds().free_jobs,
    "limits.job_bytes_per_user": lambda daemon: daemon.market.bounds().job_bytes,
    "limits.devices_per_user": lambda daemon: daemon.market.bounds().devices,
    "jobs.device_slots": lambda daemon: daemon.market.bounds().device_slots,
    "jobs.new_device_slots": lambda daemon: daemon.market.bounds().new_device_slots,
    "jobs.new_owner_slots": lambda daemon: daemon.market.bounds().new_owner_slots,
    "jobs.waiting_devices": lambda daemon: daemon.market.dispatch.terms.held_max,
    "abuse.scan_mode": lambda daemon: "scan" in daemon.helpers.stops.halt_seconds,
    "abuse.scan_targets": lambda daemon: _thresholds(daemon).scan_targets,
    "abuse.scan_failed_percent": lambda daemon: _thresholds(daemon).scan_failed_percent,
    "abuse.scan_halt_seconds": lambda daemon: daemon.settings.abuse.scan_halt_seconds,
    "abuse.mail_mode": lambda daemon: "mail" in daemon.helpers.stops.halt_seconds,
    "abuse.mail_refusals": lambda daemon: _thresholds(daemon).mail_refusals,
    "abuse.mail_halt_seconds": lambda daemon: daemon.settings.abuse.mail_halt_seconds,
    "abuse.login_mode": lambda daemon: "login" in daemon.helpers.stops.halt_seconds,
    "abuse.login_connections": lambda daemon: _thresholds(daemon).login_connections,
    "abuse.login_halt_seconds": lambda daemon: daemon.settings.abuse.login_halt_seconds,
    "abuse.stops_to_suspend": lambda daemon: daemon.market.rule_stops.stops_to_suspend,
    "new_accounts.days": lambda daemon: daemon.core.meter.new_accounts.seconds,
    "new_accounts.connections": lambda daemon: daemon.core.meter.new_accounts.connections,
    "new_accounts.gb_per_day": lambda daemon: daemon.core.meter.new_accounts.bytes_per_day,
    "new_accounts.confirmed_email": lambda daemon: daemon.core.meter.new_accounts.needs_email,
}
# Values that no setting has from the start, and that every machine can afford.
VALUES: dict[str, Any] = {
    "log.level": "error",
    "log.format": "json",
    "abuse.scan_mode": "act",
    "abuse.mail_mode": "act",
    "abuse.login_mode": "act",
    "abuse.scan_halt_seconds": 60,
    "abuse.mail_halt_seconds": 60,
    "abuse.login_halt_seconds": 60,
    "new_accounts.confirmed_email": False,
}
BYTES = 7 * 1024 * 1024


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Restore the logging that a reload changes."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    levels = {name: logging.getLogger(name).level for name in ("root", "asyncio", "aiosqlite")}
    yield
    root.handlers = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def value_of(name: str) -> Any:
    return VALUES.get(name, BYTES if "_bytes_" in name else 7)


def written(path: Path, name: str) -> Path:
    """Write a settings file with the limits that tests start with, but for one setting."""
    section, _, key = name.partition(".")
    sections = {"limits": dict(TEST_SETTINGS["limits"]), "log": {}}
    sections.setdefault(section, {})[key] = value_of(name)
    lines = []
    for each, values in sections.items():
        lines += [f"[{each}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.usefixtures("root_logger")
async def test_every_reloadable_setting_changes_the_running_daemon(tmp_path: Path) -> None:
    path = tmp_path / "proxyd.toml"
    assert set(EFFECTS) == reloadable()
    async with running_in(tmp_path, access_log={"folder": str(tmp_path / "access")}) as service:
        daemon = service.daemon
        for name, effect in EFFECTS.items():
            before = effect(daemon)
            reload(daemon, partial(load, written(path, name), os.environ))
            assert effect(daemon) != before, name


async def test_every_other_setting_waits_for_a_restart(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "proxyd.ops.base.logs.set_up", lambda *_: None
    )  # it would take caplog's handler
    settings, path = service.daemon.settings, tmp_path / "proxyd.toml"
    others = ["session_bytes_per_second", "login_failures_per_email", "registrations_per_hour"]
    for name in others:
        assert f"limits.{name}" not in reloadable()
        reload(service.daemon, partial(load, written(path, f"limits.{name}"), os.environ))
        assert service.daemon.settings == settings
        assert "these change with a restart only: " in caplog.text
        assert f"limits.{name}" in caplog.text


def test_the_operator_s_page_names_exactly_the_limits_that_are_reloadable() -> None:
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    [section] = re.findall(r"^## Reload\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    words = set(re.findall(r"`([a-z_*.]+)`", section))
    limits = {name.partition(".")[2] for name in reloadable() if name.startswith("limits.")}
    assert {name for name in limits if not name.startswith("api_")} == words & set(
        LimitSettings.__struct_fields__
    )
    assert {"api_", "log.*"} <= words
    assert {name for name in LimitSettings.__struct_fields__ if name.startswith("api_")} <= limits
