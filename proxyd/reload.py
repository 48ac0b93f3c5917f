"""SIGHUP: the settings are read again, and what can change while the daemon runs does."""

import logging
from collections.abc import Callable, Iterator

import msgspec

from config.load import SettingsError
from config.settings import Settings, reloadable
from proxyd.daemon import Daemon
from proxyd.ops import logs
from proxyd.ops.listening import CannotListenError

_logger = logging.getLogger("reload")


def reload(daemon: Daemon, read: Callable[[], Settings]) -> None:
    """Read the settings and the certificate again; if either is wrong, log why and change nothing.

    Args:
        daemon: what runs.
        read: reads the settings again, as at the start, and raises `SettingsError`.
    """
    try:
        settings = read()
        changed = frozenset(_differences(daemon.settings, settings))
        live = changed & reloadable()
        daemon.reload(_with(daemon.settings, settings, live))
    except SettingsError as error:
        _logger.error("not reloaded, the old settings stay: %s", "; ".join(error.problems))
        return
    except CannotListenError as error:
        _logger.error("not reloaded, the old settings stay: %s", error)
        return
    logs.set_up(daemon.settings.log.level, daemon.settings.log.format)
    names = [*sorted(live), *(["the certificate"] if daemon.listeners.tls is not None else [])]
    _logger.info("reloaded: %s", ", ".join(names) or "nothing has changed")
    if unchanged := sorted(changed - live):
        _logger.warning("these change with a restart only: %s", ", ".join(unchanged))


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
