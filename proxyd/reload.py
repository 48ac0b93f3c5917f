"""SIGHUP: the settings are read again, and what can change while the daemon runs does."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from config.load import SettingsError, load
from config.settings import Settings, reloadable
from proxyd.daemon import Daemon
from proxyd.ops import logs
from proxyd.ops.listening import CannotListenError

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
        daemon.reload(_with(daemon.settings, wanted, reloadable().intersection(changed)))
    except SettingsError as error:
        _logger.error("not reloaded, the old settings stay: %s", "; ".join(error.problems))
        return
    except CannotListenError as error:
        _logger.error("not reloaded, the old settings stay: %s", error)
        return
    logs.set_up(daemon.settings.log.level, daemon.settings.log.format)
    done = sorted(reloadable().intersection(changed))
    _logger.info("reloaded: %s", ", ".join([*done, "the certificate"] if _tls(daemon) else done))
    waiting = sorted(set(changed) - reloadable())
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
