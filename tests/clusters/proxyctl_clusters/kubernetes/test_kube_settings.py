"""proxyctl_clusters.kubernetes.kube_settings: an owner's record of a cluster."""

import json
from pathlib import Path

import pytest

from proxyctl.worker.base import record
from proxyctl.worker.base.record import Consent, ConsentError, Sandbox
from proxyctl_clusters.kubernetes.kube_settings import Settings, settings_of

TEXTS = {"api": "https://market.example", "token": "t", "agreed_at": "2026-01-01"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.json"


def write(path: Path, sandbox: dict[str, object]) -> None:
    path.write_text(json.dumps({**TEXTS, "sandbox": sandbox}))
    path.chmod(0o600)


def test_the_settings_of_a_plug_in_are_beside_the_others(path: Path) -> None:
    settings = {"kube_image": "python:3.12", "kube_nodes": ("pool=strangers",)}
    consent = Consent(**TEXTS, sandbox=Sandbox(executor="kubernetes", settings=settings))
    record.save(path, consent)
    assert record.load(path) == consent
    sandbox = json.loads(path.read_text())["sandbox"]
    assert sandbox["kube_nodes"] == ["pool=strangers"]
    assert "settings" not in sandbox


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [
        ({"kube_image": 1}, "sandbox.kube_image: must be the name of an image"),
        ({"kube_nodes": ["pool"]}, "sandbox.kube_nodes: must be a list of labels"),
        ({"kube_colour": "red"}, "sandbox.kube_colour: is not known; known are .*, kube_claim, "),
        ({"settings": {"kube_image": "a"}}, "sandbox.settings: is not known"),
        ({"executor": []}, "sandbox.executor: must be one of auto, bwrap, .*, slurm, kubernetes"),
    ],
)
def test_a_wrong_setting_of_a_plug_in_is_named(
    path: Path, sandbox: dict[str, object], words: str
) -> None:
    write(path, sandbox)
    with pytest.raises(ConsentError, match=words):
        record.load(path)


def test_an_executor_gets_the_record_and_the_defaults() -> None:
    settings = {"kube_claim": "proxyd:/shared", "kube_nodes": ("a=b",), "colour": "red"}
    said = settings_of(Sandbox(executor="kubernetes", settings=settings))
    assert said == Settings(claim="proxyd:/shared", nodes=("a=b",))
