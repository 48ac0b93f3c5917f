"""SIGHUP: the settings are read again, and what can change while the daemon runs does."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from config.load import SettingsError, load
from config.settings import Settings
from proxyd.daemon import Daemon
from proxyd.ops import logs
from proxyd.ops.listening import CannotListenError

RELOADABLE = frozenset(
    {
        "log.level",
        "log.format",
        "limits.handshake_seconds",
        "limits.dial_seconds",
        "limits.idle_seconds",
        "limits.drain_seconds",
        "limits.connections_per_session",
        "limits.session_datagrams_per_second",
        "limits.connections_per_address",
        "limits.connections_total",
        "limits.dials_waiting",
        "limits.requests_per_second",
        "limits.sessions_per_user",
        "limits.addresses_per_user",
        "limits.jobs_per_user",
        "limits.free_jobs_per_user",
        "limits.job_bytes_per_user",
        "limits.devices_per_user",
        "limits.requests_per_second_of_user",
        "limits.api_connections_per_network",
        "limits.api_connections_total",
        "limits.api_bytes_per_network",
        "limits.api_bytes_total",
        "limits.api_stall_seconds",
    }
)

_logger = logging.getLogger("reload")


def reload(daemon: Daemon, path: Path | None) -> None:
    """Read the settings and the certificate again; wrong ones are told, and the old ones stay.

    Args:
        daemon: what runs.
        path: the settings' file, as at the start.
    """
    try:
        wanted = load(path, os.environ)
        changed = tuple(_differences(daemon.settings, wanted))
        daemon.reload(_with(daemon.settings, wanted, RELOADABLE.intersection(changed)))
    except SettingsError as error:
        _logger.error("not reloaded, the old settings stay: %s", "; ".join(error.problems))
        return
    except CannotListenError as error:
        _logger.error("not reloaded, the old settings stay: %s", error)
        return
    logs.set_up(daemon.settings.log.level, daemon.settings.log.format)
    done = sorted(RELOADABLE.intersection(changed))
    _logger.info("reloaded: %s", ", ".join([*done, "the certificate"] if _tls(daemon) else done))
    waiting = sorted(set(changed) - RELOADABLE)
    if waiting:
        _logger.warning("these change with a restart only: %s", ", ".join(waiting))


def _tls(daemon: Daemon) -> bool:
    return daemon.listeners.tls is not None


def _differences(old: Settings, new: Settings) -> Iterator[str]:
    for section in msgspec.structs.fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        for field in msgspec.structs.fields(section.type):
            if getattr(before, field.name) != getattr(after, field.name):
                yield f"{section.name}.{field.name}"


def _with(old: Settings, new: Settings, names: frozenset[str]) -> Settings:
    """Return the old settings with some of the new ones."""
    merged = {
        section: msgspec.structs.replace(
            getattr(old, section),
            **{
                name.partition(".")[2]: getattr(getattr(new, section), name.partition(".")[2])
                for name in names
                if name.startswith(f"{section}.")
            },
        )
        for section in {name.partition(".")[0] for name in names}
    }
    return msgspec.structs.replace(old, **merged)
