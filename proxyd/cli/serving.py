"""`proxyd serve`: the only module of the command line that imports the servers."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from config.load import load
from config.settings import Settings
from proxyd.cli import demo
from proxyd.cli.demo_files import DemoFiles
from proxyd.cli.output import say
from proxyd.loop import runner
from proxyd.ops.checks.cautions import cautions
from proxyd.ops.processes.activation import inherited
from proxyd.ops.processes.role import Role
from proxyd.ops.processes.sd_notify import service_manager
from proxyd.wiring.build import build, import_for_tokens, import_the_rest
from proxyd.wiring.daemon import serve
from proxyd.wiring.listeners import Listeners
from proxyd.wiring.reload import reload

FAILED = 1

_logger = logging.getLogger("daemon")


class Reporting(Protocol):
    """Runs some work, and writes the reason of a failure to standard error; returns the status."""

    def __call__(self, work: Callable[[], int], source: str = "") -> int:
        """Do the work; `source` is the prefix of each message."""


def run(settings: Settings, path: Path | None, reporting: Reporting, *, with_demo: bool) -> int:
    """Run the daemon until a signal stops it, and return the exit status.

    Args:
        settings: the operator's settings.
        path: file of the settings, for a reload.
        reporting: runs a process, and writes the reason of its failure.
        with_demo: whether to prepare a demonstration.
    """

    def read() -> Settings:
        return _adapted(load(path, os.environ), with_demo=with_demo)

    settings = _adapted(settings, with_demo=with_demo)
    for warning in cautions(settings):
        _logger.warning("%s", warning)
    listeners = Listeners.open(settings, inherited(os.environ))
    with ExitStack() as closing:
        closing.callback(listeners.close)
        files = DemoFiles.open(settings) if with_demo else None
        if files is not None:
            closing.callback(files.close)
        return _run(settings, listeners, read, reporting, files)


def _run(
    settings: Settings,
    listeners: Listeners,
    read: Callable[[], Settings],
    reporting: Reporting,
    files: DemoFiles | None,
) -> int:
    """Serve in one process or in several; return the exit status."""
    if settings.proxy.processes == 1:
        return runner.run(_serve(settings, listeners, None, read, files))

    def work(settings: Settings, listeners: Listeners, role: Role) -> int:
        # A successor leaves the demonstration as it is: its sessions are in use.
        prepares = role.has_services and not role.is_successor
        its_files = files if prepares else None
        return reporting(
            lambda: runner.run(_serve(settings, listeners, role, read, its_files)),
            f"process {role.index}: " if role.index else "",
        )

    # A daemon of one process does not wait for these imports.
    from proxyd.supervisor.supervisor import Supervisor  # noqa: PLC0415
    from storage.engines.claim import take_claim  # noqa: PLC0415

    claim = None
    try:
        claim = take_claim(settings.storage.url)  # the processes inherit it: it is also theirs
        import_the_rest(settings)
        return Supervisor(settings, listeners, work, read, service_manager(os.environ)).run()
    finally:
        if claim is not None:
            os.close(claim)


async def _serve(
    settings: Settings,
    listeners: Listeners,
    role: Role | None,
    read: Callable[[], Settings],
    files: DemoFiles | None,
) -> int:
    built = await build(settings, listeners, role)
    manager = service_manager(os.environ) if role is None else role.manager()

    async def introduce() -> None:
        if role is None:  # several processes have imported these modules before the fork
            built.tasks.spawn("late imports", import_for_tokens(built.market.tokens))
        if files is not None:
            text = await demo.prepare(built, files)
            say(text.rstrip("\n"))  # the user reads it in the terminal

    await serve(built, introduce, lambda: reload(built, read), manager)
    return FAILED if built.tasks.has_failed else 0


def _adapted(settings: Settings, *, with_demo: bool) -> Settings:
    """Return the settings that the daemon runs with, at the start and at every reload."""
    return demo.settings_for(settings) if with_demo else settings
