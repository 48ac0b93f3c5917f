"""What is documented is true: commands run, tables match the code, links lead somewhere."""

import base64
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from support import process, threads
from support.process import ROOT
from support.worker_process import require_sandbox

from api.errors import STATUS_OF_KIND, Transport
from market.errors import Code
from market.events import CATALOGUE
from proxyctl.protocol.jobspec import (
    Checkpoint,
    Input,
    Output,
    Payload,
    Port,
    Ready,
    Resources,
)
from proxyctl.protocol.jobspec.requirements import parse, text_of
from proxyd.wire import http_refusals

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def blocks(document: Path) -> str:
    """Return every shell block of a document, as one script."""
    return "\n".join(re.findall(r"```bash\n(.*?)```", document.read_text(), re.DOTALL))


def walk_through(name: str, folder: Path, *, times: int = 1, **variables: str) -> str:
    """Run every command of a document in one shell, beside a daemon, and return what it prints.

    Run more than once, each time in a shell of its own, it prints the same to the same daemon.
    """
    url = f"sqlite:///{folder}/proxyd.db"
    programs = folder / "bin"
    programs.mkdir()
    for program in ("proxyd", "proxyctl"):
        command = f'#!/bin/sh\nexec "{sys.executable}" -m {program} "$@"\n'
        (programs / program).write_text(command)
        (programs / program).chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    with process.serving(url) as daemon:
        path = f"{ROOT}:{ROOT / 'client'}"
        environment = process.environment(url, API=daemon.api, PYTHONPATH=path, **variables)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        printed = set()
        for _ in range(times):
            done = subprocess.run(
                [bash, "-euo", "pipefail", "-c", blocks(ROOT / "docs" / name)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            printed.add(done.stdout)
    process.assert_audit(url)
    (only,) = printed
    return only


def test_the_walk_through_of_the_proxy_runs(tmp_path: Path) -> None:
    with threads.web() as page:
        printed = walk_through(
            "walkthrough.md", tmp_path, PAGE=f"http://localhost:{page.port}/bytes/7"
        )
        used = page.received + page.sent
    assert not (tmp_path / "session.json").exists()
    assert '"usd_balance":0.0' in printed
    assert "20.00 usd" in printed
    with_password, without = map(int, re.findall(r'"bytes_used":(\d+),', printed))
    assert 0 < without < with_password
    assert with_password + without == used
    assert printed.rstrip().endswith('{"ok":true}')
    assert '"kind":"release","currency":"usd"' in printed


def test_the_walk_through_of_workers_runs(tmp_path: Path) -> None:
    require_sandbox(tmp_path)
    printed = walk_through("workers.md", tmp_path, FOLDER=str(tmp_path / "worker"))
    assert "at most 1 core, 0.5 GB of memory and 1 GB of disk" in printed
    assert "ok   marketplace/reachable" in printed
    assert re.search("shown: [0-9]+ hashes a second, .*, and 499122176 bytes of memory", printed)
    assert "running as process" in printed
    assert "\n42\n" in printed
    assert printed.rstrip().endswith("not running")


def test_the_walk_through_of_jobs_runs(tmp_path: Path) -> None:
    printed = walk_through("jobs.md", tmp_path)
    assert '"is_online":true' in printed
    assert '"status":"running"' in printed
    assert '"requirements":"GPU with 24 GB"' in printed
    assert '"kind":"earning","currency":"credit","amount":108.0' in printed
    assert '"default_usd_per_hour":1.0' in printed
    assert '"username":"bo","credit_balance":5.0' in printed
    assert '"username":"wim","credit_balance":158.0' in printed
    assert '"replicas":3,"ready_replicas":0,"status":"queued","payment_type":"usd","cost":12.0' in (
        printed
    )
    assert '"resources":{"gpus":0,"gpu_model":"","vram_gb":0.0,"cores":2.0,"ram_gb":1.0' in printed
    assert '"warnings":["\\"a quiet place\\" is not understood' in printed
    assert '"secrets":{"API_KEY":""}' in printed
    assert "not for everybody" not in printed


def test_requirements_are_understood_as_documented() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text().partition("| written | understood as |")[2]
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for written, understood in rows:
        parsed = parse(written)
        assert (text_of(parsed.resources), parsed.warnings) == (understood, ())
    for written in ("exactly 2 cores", "RTX 3090 or RTX 4090", "country: DE"):
        assert f"`{written}`" in text
        assert parse(written).is_manual


def test_every_field_of_a_payload_is_documented() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    for kind in (Payload, Input, Output, Checkpoint, Port, Ready, Resources):
        assert {each.name for each in fields(kind)} <= named


def test_the_walk_through_of_events_runs(tmp_path: Path) -> None:
    printed = walk_through("events.md", tmp_path)
    assert '"type":"wallet.deposited"' in printed
    assert '"type":"session.created"' in printed
    assert printed.rstrip().endswith("event: session.ended")
    assert not (tmp_path / "heard.txt").exists()


def test_the_walk_through_of_webhooks_runs(tmp_path: Path) -> None:
    printed = walk_through("webhooks.md", tmp_path)
    assert '"type":"test.ping","timestamp":"' in printed
    assert '"status":"delivered","attempts":1,' in printed
    assert '"status":"pending","attempts":1,' in printed
    assert not (tmp_path / "secret.txt").exists()


def test_ten_lines_verify_what_the_reference_library_does(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "webhooks.md").read_text()
    [program] = re.findall(r"cat > verifying.py <<'END'\n(.*?)END\n", text, re.DOTALL)
    function = program.partition("\n\n")[2]
    assert len(function.strip().splitlines()) <= 10
    names: dict[str, Any] = {}
    exec(program, names)
    secret, other = (f"whsec_{base64.b64encode(each * 32).decode()}" for each in (b"a", b"b"))
    body, now = b'{"type":"test.ping"}', datetime.now(UTC)
    signature = Webhook(secret).sign("e", now, body.decode())

    def headers(signatures: str, said_at: datetime = now) -> dict[str, str]:
        return {
            "webhook-id": "e",
            "webhook-timestamp": str(int(said_at.timestamp())),
            "webhook-signature": signatures,
        }

    is_genuine = names["is_genuine"]
    assert is_genuine(secret, headers(signature), body)
    assert is_genuine(secret, headers(f"v1,bm9uc2Vuc2U= {signature}"), body)
    assert not is_genuine(other, headers(signature), body)
    assert not is_genuine(secret, headers(signature), body + b" ")
    old = now - timedelta(hours=1)
    assert not is_genuine(secret, headers(Webhook(secret).sign("e", old, body.decode()), old), body)
