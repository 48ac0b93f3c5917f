"""The command line of proxyctl."""

from __future__ import annotations

import argparse
import sys

from proxyctl import __version__, status


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog="proxyctl",
        description="The program for the people and the devices of a proxyd marketplace.",
    )
    parser.add_argument("--version", action="version", version=f"proxyctl {__version__}")
    topics = parser.add_subparsers(dest="topic", required=True, metavar="TOPIC")
    # An exit does not load the modules of a worker, which saves its memory.
    if sys.argv[1:2] == ["worker"]:
        from proxyctl.worker.commands import commands as worker  # noqa: PLC0415 - see above

        worker.add_commands(topics)
        sys.exit(status.call(parser.parse_args()))
    from proxyctl.exit.commands import commands  # noqa: PLC0415 - see above

    commands.add_commands(topics)
    topics.add_parser("worker", help="run strangers' jobs on this device, walled in")
    sys.exit(status.call(parser.parse_args()))


if __name__ == "__main__":
    main()
