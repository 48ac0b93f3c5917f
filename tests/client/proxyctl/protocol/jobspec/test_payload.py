"""A payload and JSON's values of it."""

import json
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.payload import (
    _READERS,
    Payload,
    Resources,
    as_fields,
    payload_of,
    resources_of,
)

WHOLE: dict[str, Any] = {
    "image": "debian:12",
    "command": ["python3", "train.py"],
    "interpreter": "bash",
    "env": {"K": "V"},
    "secrets": {"HF_TOKEN": "x"},
    "inputs": [{"name": "data.tar", "url": "https://a/b", "sha256": "a" * 64, "unpack": True}],
    "outputs": [{"name": "model", "path": "out/**", "max_bytes": 7}],
    "checkpoint": {"path": "ckpt", "every_s": 60},
    "ports": [{"name": "web", "port": 8888, "protocol": "tcp"}],
    "ready": {"http": "/api", "port": 8888, "every_s": 9},
    "network": "egress",
    "timeout_s": 3600,
    "grace_s": 20,
    "restart": "always",
}


def test_a_read_payload_is_the_written_payload() -> None:
    payload = payload_of(WHOLE)
    assert as_fields(payload) == WHOLE
    assert payload_of(json.loads(json.dumps(as_fields(payload)))) == payload


def test_the_api_reads_it_like_the_device() -> None:
    data = json.dumps(WHOLE).encode()
    assert msgspec.json.decode(data, type=Payload) == payload_of(WHOLE)


def test_a_field_that_was_not_set_is_not_sent() -> None:
    assert as_fields(payload_of({"command": ["true"]})) == {"command": ["true"]}
    assert as_fields(Resources()) == {}


def test_null_and_unknown_fields_say_nothing() -> None:
    said = {"image": None, "checkpoint": None, "later": 1}
    assert payload_of(said) == Payload()


@cases("kind", _READERS)
def test_each_field_is_read(kind: type) -> None:
    assert set(_READERS[kind]) == {each.name for each in fields(kind)}


@cases(
    ("said", "field"),
    [
        ({"image": 1}, "image"),
        ({"command": "ls"}, "command"),
        ({"command": ["ls", 1]}, "command[1]"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": ["A"]}, "env"),
        ({"inputs": [{}]}, "inputs[0].name"),
        ({"inputs": [1]}, "inputs[0]"),
        ({"inputs": [{"name": "x", "unpack": 1}]}, "inputs[0].unpack"),
        ({"outputs": [{"name": "x"}]}, "outputs[0].path"),
        ({"ports": [{"name": "x", "port": True}]}, "ports[0].port"),
        ({"ports": [{"name": "x", "port": 1, "protocol": "udp"}]}, "ports[0].protocol"),
        ({"ready": {"http": "/"}}, "ready.port"),
        ({"network": "all"}, "network"),
        ({"network": []}, "network"),
        ({"restart": {}}, "restart"),
        ({"timeout_s": 1.5}, "timeout_s"),
    ],
)
def test_a_wrong_type_is_named(said: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        payload_of(said)
    assert caught.value.field == field
    assert caught.value.message.endswith(".")


def test_resources_are_read_and_numbers_may_be_whole() -> None:
    said = {"gpus": 2, "cores": 4, "ram_gb": 0.5, "cuda": "12.1"}
    assert resources_of(said) == Resources(gpus=2, cores=4.0, ram_gb=0.5, cuda="12.1")
    for wrong in ({"cores": "4"}, {"cores": True}, {"gpus": 1.0}, {"ram_gb": 10**400}):
        with pytest.raises(SpecError):
            resources_of(wrong)


def test_something_about_gpus_needs_one() -> None:
    assert Resources().needed_gpus == 0
    assert Resources(vram_gb=8.0).needed_gpus == 1
    assert Resources(gpu_model="L4").needed_gpus == 1
    assert Resources(gpus=4, cuda="12").needed_gpus == 4


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([each.name for each in fields(Payload)]), _JSON))
def test_any_text_is_a_payload_or_an_error(said: dict[str, Any]) -> None:
    try:
        payload = payload_of(said)
    except SpecError:
        return
    assert payload_of(as_fields(payload)) == payload
