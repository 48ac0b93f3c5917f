"""The page about PostgreSQL: its links to the files of the drills, and its figures of the code."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.daemons.process import ROOT
from support.outages.patroni import CONFIG, ETCD, TTL_SECONDS

from config.load import load
from proxyd.metering.node import RENEWALS_PER_TIMEOUT
from storage.engines import postgres, postgres_availability, postgres_link, postgres_servers

PAGE = (ROOT / "docs" / "how-to" / "postgresql.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_leads_to_the_files_that_the_drills_use() -> None:
    for file in (CONFIG, ETCD):
        assert f"](../../{file.relative_to(ROOT)})" in PAGE


def test_the_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    key = '[auth]\nsigning_key = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"\n'
    for number, block in enumerate(blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block + key)
        path.chmod(0o600)
        assert load(path, {}).storage.url == tomllib.loads(block)["storage"]["url"]


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    table = PAGE.partition("## Timeouts")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    seconds = [float(re.search(r"[\d.]+$", cell)[0]) for _, cell in rows]  # type: ignore[index]
    node_timeout = tomllib.loads(blocks("toml")[0])["cluster"]["node_timeout_seconds"]
    text = CONFIG.read_text()
    numbers = {
        name: int(value) for name, value in re.findall(r"^ +(\w+): (\d+)$", text, re.MULTILINE)
    }
    assert numbers["ttl"] == TTL_SECONDS
    assert numbers["loop_wait"] == numbers["retry_timeout"]
    assert seconds == [
        postgres_servers.NEXT_SECONDS,
        postgres_availability.SEARCH_PAUSE_SECONDS,
        postgres_availability.PATIENCE_SECONDS,
        postgres_servers.TCP_USER_TIMEOUT_SECONDS,
        postgres_link.IDLE_TRANSACTION_SECONDS,
        postgres.STATEMENT_TIMEOUT_SECONDS,
        postgres.UNIT_SECONDS,
        numbers["loop_wait"],
        TTL_SECONDS - numbers["safety_margin"],
        TTL_SECONDS,
        node_timeout * (1 - 1 / RENEWALS_PER_TIMEOUT),
        node_timeout,
    ]


def test_haproxy_takes_its_part_of_the_page(tmp_path: Path) -> None:
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("haproxy is not installed")
    [listen] = [each for each in blocks("text") if each.startswith("listen")]
    path = tmp_path / "haproxy.cfg"
    path.write_text(listen.replace("10.0.0.20:5432", "127.0.0.1:5432"))
    done = subprocess.run(
        [program, "-c", "-f", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
