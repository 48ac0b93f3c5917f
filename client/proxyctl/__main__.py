"""The command line of proxyctl."""

from __future__ import annotations

import argparse
import sys

from proxyctl import __version__
from proxyctl.exit import commands


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog="proxyctl",
        description="The program for the people and the devices of a proxyd marketplace.",
    )
    parser.add_argument("--version", action="version", version=f"proxyctl {__version__}")
    commands.add_commands(parser.add_subparsers(dest="topic", required=True, metavar="TOPIC"))
    sys.exit(commands.call(parser.parse_args()))


if __name__ == "__main__":
    main()
