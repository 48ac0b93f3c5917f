"""SIGHUP: the settings are read again, and changeable ones take effect."""

import logging
from collections.abc import Callable

from config.changes import changes, with_reloadable
from config.load import SettingsError
from config.settings import Settings
from proxyd.ops.base import logs
from proxyd.ops.processes.listening import CannotListenError
from proxyd.wiring.daemon import Daemon

_logger = logging.getLogger("reload")


def reload(daemon: Daemon, read: Callable[[], Settings]) -> None:
    """Read the settings and the certificate again; if either is wrong, log why and change nothing.

    Args:
        daemon: the running daemon.
        read: reads the settings again, as at the start, and raises `SettingsError`.
    """
    try:
        settings = read()
        changed = changes(daemon.settings, settings)
        daemon.reload(with_reloadable(daemon.settings, settings))
    except SettingsError as error:
        _logger.error("not reloaded, the old settings stay: %s", "; ".join(error.problems))
        return
    except CannotListenError as error:
        _logger.error("not reloaded, the old settings stay: %s", error)
        return
    logs.set_up(daemon.settings.log.level, daemon.settings.log.format, daemon.process)
    if daemon.process is None:  # for several processes the supervisor says it
        logs.log_reload(changed, has_certificate=daemon.listeners.tls is not None)
