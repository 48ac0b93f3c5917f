"""`proxyd serve`: everything that serves is imported here, and nowhere else on the command line."""

import os
from pathlib import Path

from config.load import load
from config.settings import Settings
from proxyd.build import build
from proxyd.cli import demo
from proxyd.daemon import serve
from proxyd.loop import runner
from proxyd.ops.activation import inherited
from proxyd.ops.sd_notify import ServiceManager
from proxyd.reload import reload

FAILED = 1


def run(settings: Settings, path: Path | None, *, with_demo: bool) -> int:
    """Run the daemon until it is told to stop; return the exit status.

    Args:
        settings: what the operator wants.
        path: where they are read again.
        with_demo: whether to prepare a demonstration.
    """
    return runner.run(_serve(settings, path, with_demo=with_demo))


async def _serve(settings: Settings, path: Path | None, *, with_demo: bool) -> int:
    def read() -> Settings:
        return _adapted(load(path, os.environ), with_demo=with_demo)

    settings = _adapted(settings, with_demo=with_demo)
    built = await build(settings, inherited(os.environ))

    async def introduce() -> None:
        if with_demo:
            print(await demo.prepare(built), flush=True)  # noqa: T201 - what a person came for

    await serve(built, introduce, lambda: reload(built, read), ServiceManager(os.environ))
    return FAILED if built.tasks.has_failed else 0


def _adapted(settings: Settings, *, with_demo: bool) -> Settings:
    """Return the settings that the daemon runs with, at the start and at every reload."""
    return demo.settings_for(settings) if with_demo else settings
