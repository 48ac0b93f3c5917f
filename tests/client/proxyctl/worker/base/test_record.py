import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proxyctl.worker.base import plugins, record
from proxyctl.worker.base.record import Consent, ConsentError, Lend, Sandbox, When


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.json"


def write(path: Path, **fields: object) -> None:
    texts = {"api": "https://market.example", "token": "t", "agreed_at": "2026-01-01"}
    path.write_text(json.dumps({**texts, **fields}))
    path.chmod(0o600)


def test_a_consent_is_read_as_it_was_written(path: Path) -> None:
    consent = Consent(
        "https://market.example",
        "secret",
        "2026-01-01T00:00:00+00:00",
        Lend(jobs=("docker", "script"), gpus=("GPU-1",), network="egress", min_price_usd=0.2),
        When(hours=("22:00-07:00",), idle_minutes=10),
        Sandbox(executor="podman", images=("a/*",)),
    )
    record.save(path, consent)
    assert record.load(path) == consent
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in repr(consent)


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plug-in is installed."""
    monkeypatch.setattr(sys, "path", [])
    plugins.find.cache_clear()
    yield
    plugins.find.cache_clear()


@pytest.mark.usefixtures("_alone")
def test_a_record_for_a_plug_in_that_is_missing_names_it_and_nothing_else(path: Path) -> None:
    write(path, sandbox={"executor": "kubernetes", "kube_image": "python:3.12"})
    with pytest.raises(ConsentError) as caught:
        record.load(path)
    said = str(caught.value)
    assert "sandbox.executor: the executor kubernetes is a part of proxyctl-clusters, which" in said
    assert "kube_image" not in said


@pytest.mark.usefixtures("_alone")
def test_a_record_of_before_there_were_plug_ins_is_read_without_one(path: Path) -> None:
    empty = {"kube_config": "", "kube_claim": "", "kube_nodes": []}
    write(path, sandbox={"executor": "bwrap", **empty})
    assert record.load(path).sandbox == Sandbox(executor="bwrap")
    write(path, sandbox={"executor": "bwrap", **empty, "kube_image": "python:3.12"})
    with pytest.raises(ConsentError, match=r"sandbox\.kube_image: is not known"):
        record.load(path)


def test_everything_that_is_wrong_is_named_at_once(path: Path) -> None:
    write(path, lend={"cores": 0, "jobs": ["mining"], "core": 1}, when={"hours": ["25:00"]}, x=1)
    with pytest.raises(ConsentError) as caught:
        record.load(path)
    for words in (
        "lend.cores: ",
        "lend.jobs: ",
        "lend.core: is not known",
        "when.hours: ",
        "x: is",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"lend": []},
        {"lend": {"cores": True}},
        {"lend": {"cores": "2"}},
        {"lend": {"max_jobs": 1.5}},
        {"lend": {"network": "all"}},
        {"lend": {"gpus": "all"}},
        {"when": {"on_battery": 1}},
        {"sandbox": {"limits": "none"}},
        {"token": ""},
        {"api": None},
    ],
)
def test_a_wrong_record_is_no_consent(path: Path, fields: dict[str, object]) -> None:
    write(path, **fields)
    with pytest.raises(ConsentError):
        record.load(path)


def test_a_record_that_others_can_read_is_no_consent(path: Path) -> None:
    write(path)
    path.chmod(0o644)
    with pytest.raises(ConsentError, match="chmod 600"):
        record.load(path)


def test_hours_may_cross_midnight() -> None:
    when = When(hours=("22:00-07:00", "12:00-13:00"))
    worked = [
        hour for hour in range(24) if when.is_hour(datetime(2026, 1, 1, hour, 30, tzinfo=UTC))
    ]
    assert worked == [0, 1, 2, 3, 4, 5, 6, 12, 22, 23]
    assert When().is_hour(datetime(2026, 1, 1, tzinfo=UTC))
