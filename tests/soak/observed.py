"""`proxyd serve` that prints the number of its tasks on SIGUSR1; the product itself never does."""

import asyncio
import os
import signal
import sys

import uvloop

from config.load import load
from proxyd.ops.base import logs
from proxyd.ops.processes.sd_notify import service_manager
from proxyd.wiring.build import build
from proxyd.wiring.daemon import serve


async def _serve() -> None:
    settings = load(None, os.environ)
    logs.set_up(settings.log.level, settings.log.format)
    # Before it says that it is ready: the reader of that may request it immediately.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    built = await build(settings)

    async def on_ready() -> None:
        """Nothing is left to be done."""

    await serve(built, on_ready, lambda: None, service_manager(os.environ))


def tell() -> None:
    """Say how many tasks there are."""
    print(f"tasks: {len(asyncio.all_tasks())}", flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve()))
