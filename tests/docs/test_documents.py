"""The documents are true: commands run, tables match the code, links lead somewhere."""

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standardwebhooks.webhooks import Webhook
from support.base.cases import cases
from support.base.waiting import until_true
from support.daemons import forked_client, forked_program, process
from support.daemons.process import ROOT
from support.targets import threads
from support.workers.process import require_sandbox

from api.http.errors import STATUS_OF_KIND, Transport
from market.accounts.keys import new_text
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.events.catalogue import CATALOGUE
from market.staff.base.callers import SCOPES
from market.staff.base.roles import MATRIX, Role
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
from proxyd.__main__ import main
from proxyd.wire import http_refusals

# Options that curl 7.68, the one of Ubuntu 20.04, does not know.
NEWER_THAN_CURL = (
    *("--json", "--fail-with-body", "--retry-all-errors", "--remove-on-error", "--output-dir"),
    *("--no-clobber", "--skip-existing", "--url-query", "--variable", "--expand-url", "--rate"),
    *("--create-file-mode", "--aws-sigv4", "--ca-native", "--http3-only", "--doh-insecure"),
)
# Knows no newer option, and fails where the `send` of a page is refused, unless FAILS is empty.
OLD_CURL = """#!/bin/sh
fails=
for word; do
  case "$word" in
    {newer}) echo "curl 7.68 has no $word" >&2; exit 2 ;;
    "Content-Type: application/json") fails=$FAILS ;;
  esac
done
exec {curl} $fails "$@"
"""
# Installs a numpy and a notebook that do as much as the page asks of them.
PIP = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
package = target / sys.argv[-1]
package.mkdir(parents=True)
(package / "__init__.py").write_text("arange = range")
(package / "__main__.py").write_text('''
import http.server, sys
class Home(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<title>Home</title>")
[port] = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port=")]
http.server.HTTPServer(("127.0.0.1", port), Home).serve_forever()
''')
"""
# Python asks the resolver of the system, which may not know the names below "localhost".
LOCALHOST = """
import socket
look_up = socket.getaddrinfo
def of_this_machine(host, *more, **named):
    return look_up("127.0.0.1" if host.endswith(".localhost") else host, *more, **named)
socket.getaddrinfo = of_this_machine
"""
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*ROOT.glob("*.md"), *PAGES]


def blocks(document: Path) -> str:
    """Return every shell block of a document, as one script."""
    return "\n".join(re.findall(r"```bash\n(.*?)```", document.read_text(), re.DOTALL))


class Demonstration(NamedTuple):
    """A daemon that all pages share, as `make run` starts it."""

    folder: Path
    url: str
    api: str
    proxyd: Path  # the command for shells

    @contextmanager
    def working(self) -> Iterator[None]:
        """Have a device take jobs of it, as `make worker` does."""
        folder = ("--folder", str(self.folder / "worker"))
        token = self.folder / "proxyd-worker.token"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
        agree = ("setup", "--api", self.api, "--token-file", str(token), "--max-jobs", "4")
        done = forked_client.run(("worker", *agree, *folder), environment, typed="yes\n")
        assert done.returncode == 0, done.stderr
        with Path(os.devnull).open("r+b") as nothing:
            agent = forked_client.start(
                ("worker", "run", *folder), environment, [nothing.fileno()] * 3
            )
        try:
            yield
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait()


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demonstration]:
    folder = tmp_path_factory.mktemp("demonstration")
    url = f"sqlite:///{folder}/proxyd.db"
    with process.serving(url, "--demo") as daemon, forked_program.program() as proxyd:
        yield Demonstration(folder, url, daemon.api, proxyd)


FAILS = "--fail-with-body"
# These pages show refusals.
WITH_REFUSALS = ("how-to/device-login.md", "how-to/keys.md")


def programs(folder: Path, proxyd: Path) -> Path:
    """Return a folder with the programs that pages run, and link the pages' own files beside it."""
    place = folder / "bin"
    place.mkdir()
    (place / "proxyd").symlink_to(proxyd)
    proxyctl = place / "proxyctl"
    proxyctl.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m proxyctl "$@"\n')
    proxyctl.chmod(0o755)
    # The real program: a chooser of versions needs five times its processor time.
    (place / "python3").symlink_to(Path(sys.executable).resolve())
    curl = place / "curl"
    curl.write_text(OLD_CURL.format(curl=shutil.which("curl"), newer="|".join(NEWER_THAN_CURL)))
    curl.chmod(0o755)
    (folder / "docs").symlink_to(ROOT / "docs")
    return place


def stand_in_for_pip(folder: Path) -> None:
    """Put a pip into a folder that needs no index, unless `make notebook` has one."""
    if os.environ.get("REQUIRE_NOTEBOOK") != "1":
        pip = folder / ".venv" / "bin" / "pip"
        pip.parent.mkdir(parents=True)
        pip.write_text(f"#!{sys.executable}\n{PIP}")
        pip.chmod(0o755)


def pasted(script: str, folder: Path, daemon: Demonstration, **variables: str) -> str:
    """Run commands in one shell, beside a daemon, and return their output."""
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{ROOT}:{ROOT / 'client'}"
    environment = process.environment(daemon.url, API=daemon.api, PYTHONPATH=path, **variables)
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        [bash, "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def walk_through(
    name: str, folder: Path, daemon: Demonstration, *, times: int = 1, **variables: str
) -> str:
    """Run every command of a document in one shell, beside a daemon, and return its output.

    Run more than once, each time in a shell of its own, it prints the same to the same daemon.
    No `send` may be refused, unless the page shows refusals.
    """
    programs(folder, daemon.proxyd)
    fails = "" if name in WITH_REFUSALS else FAILS
    script = blocks(ROOT / "docs" / name)
    printed = {pasted(script, folder, daemon, FAILS=fails, **variables) for _ in range(times)}
    process.assert_audit(daemon.url)
    (only,) = printed
    return only


def is_of_the_demonstration(page: Path) -> bool:
    """Return whether a page has commands for a demonstration."""
    return ". docs/shell.sh\n" in page.read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_all_pages_run_in_one_demonstration_in_any_order(
    tmp_path: Path, *, is_reversed: bool
) -> None:
    """One shell, one daemon and one device of `make worker`, as a reader has them."""
    require_sandbox(tmp_path)
    folder = tmp_path / "demonstration"
    folder.mkdir()
    url = f"sqlite:///{folder}/proxyd.db"
    stand_in_for_pip(tmp_path)
    pages = sorted(filter(is_of_the_demonstration, PAGES), reverse=is_reversed)
    assert len(pages) > 8
    scripts = []
    for page in pages:
        name = page.relative_to(ROOT / "docs").as_posix()
        fails = "" if name in WITH_REFUSALS else FAILS
        scripts.append(f"export FAILS={fails}\necho page {name} after $SECONDS s\n{blocks(page)}")
    with process.serving(url, "--demo") as daemon, forked_program.program() as proxyd:
        programs(tmp_path, proxyd)
        demonstration = Demonstration(folder, url, daemon.api, proxyd)
        with demonstration.working():
            printed = pasted("\n".join(scripts), tmp_path, demonstration)
    assert len(re.findall(r"^page .* s$", printed, re.MULTILINE)) == len(pages)
    process.assert_audit(url)


def test_each_page_has_users_and_references_of_its_own() -> None:
    """They are run one after the other, on one demonstration."""
    names: list[str] = []
    for place in PAGES:
        if is_of_the_demonstration(place):
            commands = blocks(place)
            names += set(re.findall(r'(?:"username": "|\(account )(\w+)', commands))
            names += set(re.findall(r"--reference (\S+)", commands))
    assert len(names) > 10
    assert sorted(names) == sorted(set(names))


def test_no_printed_command_needs_a_newer_curl() -> None:
    """The pages, the demonstration, the console and the program for devices print commands."""
    newer = re.compile(rf"(?:{'|'.join(NEWER_THAN_CURL)})(?![\w-])")
    places = [*DOCUMENTS, *(ROOT / "proxyd" / "cli").glob("*.py"), *ROOT.glob("Makefile")]
    places += [each for each in (ROOT / "api" / "console").rglob("*.js*") if each.is_file()]
    for place in places:
        commands = re.sub(r"\\+\n", " ", place.read_text())
        lines = [each for each in commands.splitlines() if re.search(r"\b(?:curl|send)\b", each)]
        assert [each for each in lines if newer.search(each)] == [], place


def test_the_walk_through_of_the_proxy_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    with threads.web() as page:
        printed = walk_through(
            "how-to/bandwidth.md",
            tmp_path,
            demonstration,
            PAGE=f"http://localhost:{page.port}/bytes/7",
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


@pytest.mark.early
def test_the_tutorial_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    require_sandbox(tmp_path)
    with demonstration.working():  # it must not take the page's job
        printed = walk_through("tutorial.md", tmp_path, demonstration)
    assert "six times seven is 42\n" in printed
    assert '"kind":"earning","currency":"credit","amount":1.8' in printed
    assert not (tmp_path / "lent").exists()


@pytest.mark.long  # the other page with a device of its own is the tutorial
@pytest.mark.timeout(300)  # two commands of the page wait for a minute each at most
def test_the_walk_through_of_workers_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    require_sandbox(tmp_path)
    with demonstration.working():  # it must not take the page's job
        printed = walk_through("how-to/workers.md", tmp_path, demonstration)
    assert (tmp_path / "var" / "rig-1" / "worker.json").exists()
    assert "at most 1 core, 0.5 GB of memory and 1 GB of disk" in printed
    assert "ok   marketplace/reachable" in printed
    assert "running as process" in printed
    assert "\n42\n" in printed
    assert printed.rstrip().endswith("not running")


@pytest.mark.long
def test_the_walk_through_of_packages_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    require_sandbox(tmp_path)
    stand_in_for_pip(tmp_path)
    with demonstration.working():
        printed = walk_through("how-to/packages.md", tmp_path, demonstration)
    assert "the sum is 45\n" in printed
    assert re.search(r"open http://\S+\.localhost:[0-9]+/\?key=", printed)
    assert "<title>Home</title>" in printed
    assert printed.count('"warnings":["') == 2


def test_the_walk_through_of_jobs_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/jobs.md", tmp_path, demonstration)
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


def run_python(name: str, replaced: dict[str, str], **variables: str) -> str:
    """Run the Python of a page, with values in the place of its names, and return its output."""
    page = (ROOT / "docs" / "how-to" / name).read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for text, value in replaced.items():
        assert text in program
        program = program.replace(text, value)
    done = subprocess.run(
        [sys.executable, "-c", LOCALHOST + program],
        env={**process.environment(""), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def variables(demonstration: Demonstration) -> dict[str, str]:
    """Return the address of the API, and a login with money and an exit."""
    api, file = process.Api(demonstration.api), demonstration.folder / "proxyd-demo.token"
    until_true(file.exists, "the account of the demonstration")
    token = file.read_text().strip()
    _, made = api.call("POST", "/api/worker/token/create", {"name": "phone"}, token)
    _, terms = api.call("GET", "/api/exits/terms", token=token)
    consent = {"token_id": made["token_id"], "terms_hash": terms["terms_hash"]}
    status, body = api.call("POST", "/api/worker/exit/consent", consent, token)
    assert status == 200, body
    return {"API": demonstration.api, "TOKEN": token}


@cases(
    ("name", "printed"),
    [
        ("console.md", "'usd_balance': "),
        ("exits.md", "phone offline 0"),
        ("exits-money.md", "'password': "),
        ("geography.md", "127.0.0.1 "),
    ],
)
def test_the_python_of_the_page_runs(name: str, printed: str, variables: dict[str, str]) -> None:
    assert printed in run_python(name, {}, **variables)


def test_the_python_of_the_pages_about_the_proxy_runs(variables: dict[str, str]) -> None:
    api = process.Api(variables["API"])
    proxy = api.buy(variables["TOKEN"], gb=0.01)["proxy"]
    login = {"NAME": proxy["username"], "PASSWORD": proxy["password"]}
    page = {"http://127.0.0.1:8080": api.api, "127.0.0.1:1080": f"127.0.0.1:{proxy['port']}"}
    assert '"ip":"127.0.0.1"' in run_python("demonstration.md", {**login, **page})
    wishes = {"-country-de-session-abc": "-direct", "HOST:PORT": page["127.0.0.1:1080"]}
    page = {"https://example.com/": f"{api.api}/"}
    assert run_python("leaving.md", {**login, **wishes, **page}) == "200\n"


def test_the_python_of_the_page_about_apps_runs(
    tmp_path: Path, demonstration: Demonstration, variables: dict[str, str]
) -> None:
    require_sandbox(tmp_path)
    api, token = process.Api(demonstration.api), variables["TOKEN"]
    serve = "exec python3 -m http.server --bind 127.0.0.1 8000"
    ports = [{"name": "web", "port": 8000}]
    payload = {"script": serve, "interpreter": "bash", "ports": ports, "ready": {"port": 8000}}
    job = {"title": "page", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    with demonstration.working():
        status, posted = api.call("POST", "/api/jobs", {**job, "payload": payload}, token)
        assert status == 200, posted
        path = f"/api/jobs/{posted['job_id']}"

        def is_ready() -> bool:
            _, body = api.call("GET", f"{path}/app", token=token)
            return bool(body["app"]["is_ready"])

        until_true(is_ready, "the page of the job")
        printed = run_python("apps.md", {}, JOB=posted["job_id"], **variables)
        assert "<title>Directory listing" in printed
        api.call("POST", f"{path}/cancel", token=token)


def test_requirements_are_understood_as_documented() -> None:
    text = (
        (ROOT / "docs" / "reference" / "jobs.md")
        .read_text()
        .partition("| written | understood as |")[2]
    )
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for written, understood in rows:
        parsed = parse(written)
        assert (text_of(parsed.resources), parsed.warnings) == (understood, ())
    for written in ("exactly 2 cores", "RTX 3090 or RTX 4090", "country: DE"):
        assert f"`{written}`" in text
        assert parse(written).is_manual


def test_every_field_of_a_payload_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "jobs.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    for kind in (Payload, Input, Output, Checkpoint, Port, Ready, Resources):
        assert {each.name for each in fields(kind)} <= named


def test_the_walk_through_of_events_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/events.md", tmp_path, demonstration)
    assert '"type":"wallet.deposited"' in printed
    assert '"type":"session.created"' in printed
    assert printed.rstrip().endswith("event: session.ended")
    assert not (tmp_path / "heard.txt").exists()


def test_the_walk_through_of_the_staff_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/staff.md", tmp_path, demonstration)
    assert printed.count("w…@e…") > 4
    assert "wilma@example.com" in printed.rpartition("revealed: ")[2]
    assert "asked by telephone about the deposit staff-page-1" in printed
    assert "right: id " in printed
    assert printed.rstrip().endswith("the ledger agrees")


def test_the_walk_through_of_money_by_staff_runs(
    tmp_path: Path, demonstration: Demonstration
) -> None:
    printed = walk_through("how-to/staff-money.md", tmp_path, demonstration)
    assert "refunded: id " in printed
    assert "refused: I have asked for it" in printed
    assert "withdrawn: id " in printed
    assert "price_percent 80" in printed


def test_the_walk_through_of_stopping_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/stopping.md", tmp_path, demonstration)
    assert "cut: on 1 of 1 node, 0 connections" in printed
    assert "Your sessions sent mail to strangers." in printed
    assert "effective: on 1 of 1 node" in printed


def test_the_page_of_the_staff_has_the_matrix() -> None:
    text = (ROOT / "docs" / "how-to" / "staff.md").read_text()
    rows = re.findall(r"^\| `([a-z._]+)` \| (\w+) \| (\w+) \| (\w+) \|$", text, re.MULTILINE)
    assert [(word, *answers) for word, *answers in rows] == [
        (action.value, *("yes" if role in roles else "no" for role in Role))
        for action, roles in MATRIX.items()
    ]


def test_the_page_of_the_staff_api_has_the_scopes_of_keys() -> None:
    text = (ROOT / "docs" / "how-to" / "staff-api.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)` \| (`[a-z._`, ]+`) \|$", text, re.MULTILINE)
    assert {(word, scope) for scope, words in rows for word in re.findall(r"[a-z._]+", words)} == {
        (action.value, scope.value) for action, scope in SCOPES.items()
    }


def test_the_walk_through_of_webhooks_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/webhooks.md", tmp_path, demonstration)
    assert '"type":"test.ping","timestamp":"' in printed
    assert '"status":"delivered","attempts":1,' in printed
    assert '"status":"pending","attempts":1,' in printed
    assert not (tmp_path / "secret.txt").exists()


def test_ten_lines_verify_what_the_reference_library_does(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "webhooks.md").read_text()
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


def test_the_walk_through_of_device_authorisation_runs(
    tmp_path: Path, demonstration: Demonstration
) -> None:
    printed = walk_through("how-to/device-login.md", tmp_path, demonstration)
    assert '"code":"authorization_pending"' in printed
    assert '"client_name":"proxyd on attic"' in printed
    assert '"sessions":[]' in printed


def test_the_walk_through_of_keys_runs(tmp_path: Path, demonstration: Demonstration) -> None:
    printed = walk_through("how-to/keys.md", tmp_path, demonstration)
    assert '"session_id":"' in printed
    for code in ("scope_missing", "spend_limit_reached", "unauthorized"):
        assert f'"code":"{code}"' in printed
    assert '"spent_usd":1.0,' in printed
    assert '"spend_limit_usd":15.0,' in printed


def test_the_page_of_keys_has_every_scope_and_finds_keys() -> None:
    page = (ROOT / "docs" / "how-to" / "keys.md").read_text()
    assert re.findall(r"^\| `(\w+:\w+)` \|", page, re.MULTILINE) == list(Scope)
    [pattern] = re.findall(r"```\n(.*?)\n```", page)
    key = new_text()
    assert re.findall(pattern, f"token = '{key}'") == [key]
    assert not re.findall(pattern, f"token = '{key}0'")


def test_the_page_of_events_has_every_event_with_what_it_says() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    rows = re.findall(r"^\| `(\w+\.\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(CATALOGUE)
    for name, listed in rows:
        assert re.findall(r"`(\w+)`", listed) == list(CATALOGUE[name].__struct_fields__)


def test_the_walk_through_of_the_assistant_runs(
    tmp_path: Path, demonstration: Demonstration
) -> None:
    printed = walk_through("how-to/assistant.md", tmp_path, demonstration, times=2)
    assert "POST /api/bandwidth/create" in printed
    assert "Bu otomatik bir" in printed
    assert "Your balance: 0.00 credits and 0.00 USD." in printed
    assert "event: delta\ndata: " in printed
    assert 'event: done\ndata: {"ok":true,"reply":' in printed
    assert '"goodness_type":"unverified"' in printed


def test_the_table_of_errors_is_the_code() -> None:
    rows = {
        (code, int(status), meaning)
        for code, status, meaning in re.findall(
            r"^\| `(\w+)` \| (\d+) \| (.*) \|$",
            (ROOT / "docs" / "reference" / "errors.md").read_text(),
            re.MULTILINE,
        )
    }
    market = {(code.word, STATUS_OF_KIND[code.kind], code.meaning) for code in Code}
    transport = {(each.word, each.status, each.meaning) for each in Transport}
    assert rows == market | transport


def test_the_table_of_http_answers_is_the_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| (.*) \|$",
        (ROOT / "docs" / "reference" / "errors.md").read_text(),
        re.MULTILINE,
    )
    told = [
        *(each for each in vars(http_refusals).values() if isinstance(each, http_refusals.Answer)),
        *http_refusals.ANSWER_OF_REFUSAL.values(),
        *http_refusals.ANSWER_OF_FAILURE.values(),
    ]
    in_code = {(str(each.status.value), each.error, each.words) for each in told}
    assert sorted(rows) == sorted(in_code)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document that a link can name: its headings, as forges write them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@cases("document", DOCUMENTS)
def test_links_lead_somewhere(document: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def links_of(document: Path) -> set[Path]:
    """Return the files that a document links to."""
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", document.read_text())
    return {(document.parent / link).resolve() for link in links if "://" not in link}


def test_the_readme_leads_to_every_document() -> None:
    """Each page is linked from the index of the documentation, the rest from the README."""
    index = ROOT / "docs" / "README.md"
    assert {*PAGES} - {index} <= links_of(index)
    assert {*ROOT.glob("*.md"), index} - {ROOT / "README.md"} <= links_of(ROOT / "README.md")


def test_the_page_for_contributors_names_every_target() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Targets\n")
    named = set(re.findall(r"`make ([a-z-]+)", section.partition("\n## ")[0]))
    assert targets - named == {"clean"}


def test_the_help_of_make_has_a_sentence_for_every_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    printed, by_default = (
        subprocess.run(
            ["make", "--no-print-directory", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for words in (["help"], [])
    )
    assert re.findall(r"^([a-z][a-z-]*) +[A-Z]\w+.* \w+", printed, re.MULTILINE) == targets
    assert printed == by_default


def test_the_readme_is_one_page_that_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert "\n    make run\n" in text
    assert "`make test`" in text


@cases("document", DOCUMENTS)
def test_every_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z][a-z-]*)", document.read_text())) <= targets


def test_the_architecture_says_why_each_dependency_is_there() -> None:
    _, _, table = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")
    named = re.findall(r"^\| ([\w, -]+) \| \w", table, re.MULTILINE)[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name for row in named for name in row.split(", ")} == set(project["dependencies"])


def test_the_page_of_commands_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    listed = re.findall(r"^\| `proxyd ([a-z]+(?: [a-z-]+)?)", text, re.MULTILINE)

    def help_of(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0, words
        return capsys.readouterr().out

    for command in listed:
        words = [each for each in command.split() if not each.startswith("-")]
        assert help_of(*words).startswith(f"usage: {' '.join(['proxyd', *words])} ")
    topics = re.findall(r"^    (\w+)(?= |$)", help_of(), re.MULTILINE)
    assert {command.split()[0] for command in listed} == set(topics)


@cases("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_are_named_exist(name: str) -> None:
    rooms = ("proxyd", "api", "market", "storage", "config", "client", "clusters", "tests")
    files = [str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")]
    mentions = re.findall(r"`([\w/]+\.py)`", (ROOT / name).read_text())
    missing = [
        mention
        for mention in mentions
        if not any(f"/{file}".endswith(f"/{mention}") for file in files)
    ]
    assert missing == []


def test_each_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = r"(?:proxyd|api|market|storage|config|client|clusters|tests|grafana)"
    paths = set(re.findall(rf"`({rooms}/[\w./-]+\.(?:py|js|json|toml))`", text))
    assert len(paths) > 80
    assert {path for path in paths if not (ROOT / path).is_file()} == set()
