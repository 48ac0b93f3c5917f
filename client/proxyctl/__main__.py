"""The command line of proxyctl."""

from __future__ import annotations

import argparse

from proxyctl import __version__


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="proxyctl")
    parser.add_argument("--version", action="version", version=f"proxyctl {__version__}")
    parser.parse_args()


if __name__ == "__main__":
    main()
