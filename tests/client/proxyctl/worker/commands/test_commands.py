"""The commands around `run`, as processes, and the text that they show to the owner."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.base.brief import brief
from support.daemons.process import ROOT
from support.workers.market import TOKEN, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, require_sandbox, worker_agent

from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base import names, record
from proxyctl.worker.commands import checks
from proxyctl.worker.commands.setup import _OPTIONS
from proxyctl.worker.executors.base.base import Finding


@pytest.fixture
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture
def agent(market: WorkerMarket, tmp_path: Path) -> Iterator[WorkerAgent]:
    with worker_agent(tmp_path / "agent", market) as made:
        (made.folder / "token").write_text(TOKEN)
        (made.folder / names.CONSENT).unlink()
        yield made


def setup(agent: WorkerAgent, *options: str, typed: str = "yes\n", api: str = "") -> str:
    require_sandbox(agent.folder)
    done = agent.command(
        "setup",
        *("--api", api or agent.market.url, "--token-file", str(agent.folder / "token")),
        *options,
        typed=typed,
    )
    assert (done.returncode == 0) == (agent.folder / names.CONSENT).exists(), done.stderr
    return done.stdout + done.stderr


def without_limits() -> str:
    """Return a kind of limits that this machine does not have."""
    return "systemd" if not Path("/run/systemd/system").is_dir() else "cgroup1"


def test_setup_shows_the_lent_resources_and_writes_them_down(agent: WorkerAgent) -> None:
    shown = setup(agent, "--cores", "0.5", "--network", "egress", "--hours", "22:00-07:00")
    for words in ("0.5 cores", "public addresses", "no GPU", "22:00-07:00", "your other programs"):
        assert words in shown
    consent = record.load(agent.folder / names.CONSENT)
    assert (consent.lend.cores, consent.lend.network) == (0.5, "egress")
    assert consent.token == TOKEN
    assert "images" not in shown
    setup(agent, "--max-jobs", "3")
    again = record.load(agent.folder / names.CONSENT).lend
    assert (again.cores, again.max_jobs) == (0.5, 3)  # the earlier consent stays


@pytest.mark.long
def test_setup_shows_where_images_come_from(agent: WorkerAgent) -> None:
    options = ("--jobs", "docker", "--images", "docker.io/library/*", "--pull-gb-per-day", "3")
    shown = setup(agent, *options, "--registries", "192.168.1.5:5000")
    for words in ("docker.io/library/*", "the public internet, 192.168.1.5:5000", "3 GB a day"):
        assert words in shown


def test_every_option_of_setup_is_documented() -> None:
    text = (ROOT / "docs" / "how-to" / "workers.md").read_text("utf-8")
    names_of = [f"`--{name.replace('_', '-')}`" for _, name, _, _ in _OPTIONS]
    assert [each for each in names_of if each not in text] == []


@pytest.mark.parametrize(
    ("options", "words"),
    brief(
        [
            (("--cores", "5000"), "5000 cores are lent, and"),
            (("--ram-gb", "900000"), "GB of memory are lent, and"),
            (("--disk-gb", "900000"), "GB of disk are lent, and"),
            (("--gpus", "GPU-none"), "GPUs are lent that are not there: GPU-none"),
            (("--hours", "noon"), "when.hours: must be a list of spans like 22:00-07:00"),
            (("--hours", "22:00-22:00"), "which begin and end at other times"),
            (("--limits", "none"), "sandbox.limits: must be one of"),
        ],
        2,
        are_sets=True,
    ),
)
def test_nothing_is_lent_that_is_not_there(
    agent: WorkerAgent, options: tuple[str, ...], words: str
) -> None:
    assert words in setup(agent, *options)
    assert not (agent.folder / names.CONSENT).exists()


@pytest.mark.long
def test_setup_tries_the_token_before_it_shows_the_lent_resources(agent: WorkerAgent) -> None:
    agent.market.is_revoked = True
    shown = setup(agent)
    assert "does not know this token, or has revoked it; make a new one" in shown
    assert "Jobs of strangers" not in shown
    agent.market.stop()
    place = agent.market.url.rpartition("/")[2]
    assert f"{place} cannot be reached" in setup(agent)


@pytest.mark.long
def test_setup_asks_once_for_the_same_where_the_owner_wants_that(agent: WorkerAgent) -> None:
    agreed = setup(agent, "--unless-agreed")
    assert "Type yes" in agreed
    assert "proxyctl worker run" not in agreed  # the caller runs it
    before = record.load(agent.folder / names.CONSENT)
    again = agent.command("setup", "--unless-agreed", typed="")
    assert again.returncode == 0, again.stderr
    assert "Agreed before" in again.stdout
    assert "Type yes" not in again.stdout
    assert record.load(agent.folder / names.CONSENT) == before
    other = agent.command("setup", "--unless-agreed", "--hours", "22:00-07:00", typed="no\n")
    assert other.returncode == 1
    assert "Type yes" in other.stdout
    assert record.load(agent.folder / names.CONSENT) == before
    # The words name no images here, but the agreement has a bound for images.
    kept = agent.command("setup", "--unless-agreed", "--cache-gb", "7", typed="no\n")
    assert kept.returncode == 1
    assert "Type yes" in kept.stdout
    # The words do not name the settings of a plug-in either.
    hardened = agent.command("setup", "--unless-agreed", "--kube-runtime", "gvisor", typed="no\n")
    assert hardened.returncode == 1
    assert "Type yes" in hardened.stdout
    # A record of before has no hash of the text that was agreed to.
    path = agent.folder / names.CONSENT
    record.save(path, replace(before, terms=""))
    assert agent.command("setup", "--unless-agreed", typed="no\n").returncode == 1
    # A new token of the same account is no other agreement.
    record.save(path, replace(before, token="of before"))
    renewed = ("--unless-agreed", "--token-file", str(agent.folder / "token"))
    assert agent.command("setup", *renewed, typed="").returncode == 0
    assert record.load(path) == before


@pytest.mark.long
def test_setup_keeps_the_earlier_token_only_for_the_same_marketplace(agent: WorkerAgent) -> None:
    before = agent.command("setup", "--api", agent.market.url, typed="yes\n")
    assert before.returncode == 1
    assert "there is no terminal to ask for the token at; name a file" in before.stderr
    assert "GetPassWarning" not in before.stderr
    setup(agent, "--hours", "22:00-07:00")
    kept = agent.command("setup", "--hours", "always", typed="yes\n")
    assert kept.returncode == 0, kept.stderr
    consent = record.load(agent.folder / names.CONSENT)
    assert (consent.token, consent.when.hours) == (TOKEN, ())
    other = agent.market.url.replace("127.0.0.1", "localhost")
    done = agent.command("setup", "--api", other, typed="yes\n")
    assert "there is no terminal" in done.stderr


def test_no_more_is_lent_by_the_file_than_is_there(agent: WorkerAgent) -> None:
    setup(agent)
    path = agent.folder / names.CONSENT
    fields = json.loads(path.read_text())
    fields["lend"]["cores"] = 5000
    path.write_text(json.dumps(fields))
    done = agent.command("run")
    assert done.returncode == 1
    assert "5000 cores are lent, and" in done.stderr
    assert not agent.market.questions


@pytest.mark.long
def test_check_shows_everything_where_no_limits_can_be_held(agent: WorkerAgent) -> None:
    done = agent.command("check")
    assert done.returncode == 1
    assert done.stdout.endswith(f"nothing is done before that was agreed to; {record.AGREE}\n")
    setup(agent, "--executor", "bwrap")
    path = agent.folder / names.CONSENT
    fields = json.loads(path.read_text())
    fields["sandbox"]["limits"] = without_limits()
    path.write_text(json.dumps(fields))
    shown = agent.command("check").stdout
    assert "bwrap/bubblewrap" in shown
    assert "(one way to hold limits is enough)" in shown


def test_setup_names_missing_parts_and_their_remedy_before_it_asks(
    agent: WorkerAgent,
) -> None:
    """Owners agreed to everything once, and learned then that nothing could run."""
    options = ("--api", agent.market.url, "--executor", "bwrap", "--limits", without_limits())
    done = agent.command("setup", *options, typed="yes\n")
    assert done.returncode == 1
    assert re.search(r"MISS bwrap/\S+: .*\n     needed: ", done.stdout)
    assert "Type yes" not in done.stdout
    assert "no job can be walled in here" in done.stderr
    assert not (agent.folder / names.CONSENT).exists()
    assert not agent.market.questions


def test_anything_but_yes_is_no(agent: WorkerAgent) -> None:
    assert "nothing was agreed to" in setup(agent, typed="no\n")
    assert "nothing was agreed to" in setup(agent, typed="")
    assert "would carry your token in clear" in setup(agent, api="http://market.example")


def test_check_names_missing_parts_and_their_remedy(agent: WorkerAgent) -> None:
    before = agent.command("check").stdout
    assert "no user has agreed to lend anything yet" in before
    assert str(agent.folder / names.CONSENT) in before
    assert "device/disk" in before
    setup(agent, "--executor", "bwrap")  # the next check tries no other one
    agent.market.is_revoked = True
    done = agent.command("check")
    assert done.returncode == 1
    assert "MISS marketplace/reachable: The worker token is not valid." in done.stdout
    assert "do: make a new token in your account" in done.stdout


@pytest.mark.long
def test_a_device_where_nothing_can_be_walled_in_takes_nothing(agent: WorkerAgent) -> None:
    setup(agent, "--executor", "bwrap")
    path = agent.folder / names.CONSENT
    fields = json.loads(path.read_text())
    fields["sandbox"]["limits"] = without_limits()
    path.write_text(json.dumps(fields))
    done = agent.command("run")
    assert done.returncode == 1
    assert "no job can be walled in here" in done.stderr
    assert "proxyctl worker check" in done.stderr


@pytest.mark.long
def test_nothing_runs_in_a_folder_that_others_write_to(agent: WorkerAgent) -> None:
    setup(agent)
    agent.folder.chmod(0o777)
    ran = agent.command("run")
    assert ran.returncode != 0
    assert "can be written to by every user of this machine" in ran.stderr
    agent.folder.chmod(0o700)


@pytest.mark.long
def test_nothing_runs_before_it_is_started(agent: WorkerAgent) -> None:
    assert agent.command("status").stdout == "not running\n"
    assert agent.command("jobs").stdout == "not running\n"
    assert agent.command("drain").stdout == "no agent runs here\n"


@pytest.mark.parametrize(("engines", "missing"), [(("podman",), 0), ((), 2)])
def test_one_engine_that_works_is_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engines: tuple[str, ...], missing: int
) -> None:
    findings = {
        name: [Finding("client", name in engines, "x", "y", "z")] for name in ("podman", "docker")
    }
    executors = {name: Mock() for name in engines}
    monkeypatch.setattr(sandboxes, "usable", lambda *_: (executors, findings))
    found = checks.requirements(record.Lend(jobs=("training",)), record.Sandbox(), tmp_path)
    assert (found.are_met, len(found.missing)) == (bool(engines), missing)
