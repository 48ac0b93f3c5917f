"""Warnings about settings: a start and `config check` give the same ones, each one once."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.daemons import process

EVERY_ADDRESS = {"PROXYD_API__HOST": "0.0.0.0", "PROXYD_API__TRUSTED_PROXIES": '["0.0.0.0/0"]'}
MORE_THAN_CORES = {"PROXYD_PROXY__PROCESSES": str(len(os.sched_getaffinity(0)) + 1)}


@pytest.mark.parametrize("variables", [EVERY_ADDRESS, EVERY_ADDRESS | MORE_THAN_CORES])
def test_a_start_logs_the_warnings_of_config_check(
    tmp_path: Path, variables: Mapping[str, str]
) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    process.funded(url)
    checked = process.run(url, "config", "check", **variables)
    named = re.findall(r"proxyd: warning: (.*)", checked.stderr)
    assert {line.partition(" ")[0] for line in named} >= {"api.host", "api.trusted_proxies"}
    with process.serving(url, **variables) as daemon:
        logged = [line for line in daemon.output.splitlines() if " WARNING " in line]
        assert [line.partition(" WARNING daemon: ")[2] for line in logged] == named


def test_a_start_on_loopback_warns_of_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    process.funded(url)
    with process.serving(url) as daemon:
        assert " WARNING " not in daemon.output
