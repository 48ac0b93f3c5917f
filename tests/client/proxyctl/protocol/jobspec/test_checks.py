"""The bounds of a specification, and the errors for values beyond them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases
from support.base.cost import seconds_of

from proxyctl.protocol.jobspec.checks import (
    check,
    check_apart,
    check_name,
    check_path,
    check_resources,
)
from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.payload import Resources, payload_of

ID = "0190c5a0-0000-7000-8000-000000000000"
SHA = "0" * 64


def problem(**said: Any) -> str:
    """Return which field is wrong; "" if none is."""
    try:
        check(payload_of({"command": ["true"], **said}))
    except SpecError as error:
        return error.field if error.message.endswith(".") else "no sentence"
    return ""


@cases(
    "image",
    [
        "debian",
        "debian:12",
        "library/debian:12-slim",
        "localhost:5000/a/b__c:x",
        "127.0.0.1:5000/name@sha256:" + SHA,
        "[::1]:5000/name",
        "registry.example.com/team/a-b/c.d_e:V1.0@sha256:" + SHA,
    ],
)
def test_images(image: str) -> None:
    assert problem(image=image) == ""


@cases(
    "image",
    [
        "Debian:12",
        "debian:",
        "debian@sha256:12",
        "debian@md5:" + SHA,
        "-debian",
        "a//b",
        "../a",
        "https://example.com/a",
        "a b",
        "a\n",
        "docker-archive:/etc/passwd",
        "oci:../x",
        "a:" + "b" * 129,
        "x" * 513,
    ],
)
def test_a_text_that_is_no_image_is_refused(image: str) -> None:
    assert problem(image=image) == "image"


def test_the_longest_name_that_is_almost_an_image_is_refused_at_once() -> None:
    assert problem(image="a-" * 255 + "!") == "image"


def test_a_specification_has_exactly_one_program() -> None:
    assert problem(command=[]) == "command"
    assert problem(command=[], image="a") == ""
    assert problem(command=[], script="x") == ""
    assert problem(script="x") == "script"
    assert problem(command=[""]) == "command[0]"


def test_types_of_jobs_need_their_fields() -> None:
    with pytest.raises(SpecError) as caught:
        check(payload_of({"command": ["x"]}), "docker")
    assert caught.value.field == "image"
    check(payload_of({"image": "x"}), "docker")
    with pytest.raises(SpecError) as caught:
        check(payload_of({"image": "x"}), "training")
    assert caught.value.field == "command"
    check(payload_of({"script": "x"}), "script")


def test_sizes_of_scripts_and_commands_are_bounded() -> None:
    assert problem(command=[], script="ü" * 32_768) == ""
    assert problem(command=[], script="ü" * 32_768 + "x") == "script"
    assert problem(command=["x"] * 256) == ""
    assert problem(command=["x"] * 257) == "command"
    assert problem(command=["x", "y" * 32_768]) == "command"
    assert problem(command=["x", "y" * 32_769]) == "command[1]"
    assert problem(command=["x\0"]) == "command[0]"
    assert problem(command=[], script="\ud800") == "script"


def test_variables() -> None:
    assert problem(env={f"A{n}": "" for n in range(64)}) == ""
    assert problem(env={f"A{n}": "" for n in range(65)}) == "env"
    assert problem(env={"A": "x" * 32_767}) == ""
    assert problem(env={"A": "x" * 32_768}) == "env"
    assert problem(secrets={"A": "x" * 32_769}) == "secrets.A"
    assert problem(env={"A=B": ""}) == "env"
    assert problem(env={"": ""}) == "env"
    assert problem(env={"1A": ""}) == "env"
    assert problem(env={"A\n": ""}) == "env"
    assert problem(env={"A": "\0"}) == "env.A"
    assert problem(env={"A": "line\nline"}) == ""
    assert problem(env={"PROXYD_JOB": "x"}) == "env.PROXYD_JOB"
    assert problem(env={"A": ""}, secrets={"A": ""}) == "secrets.A"


BAD_PATHS = ("", "/etc", "..", "a/../b", "./a", "a//b", "a/", "a\\b", "a\nb", "a\0", "x" * 256)


@cases("path", [*BAD_PATHS, "a/" * 600 + "a", "\u202ea", "\ud800"])
def test_paths_that_leave_or_cannot_be_written(path: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_path("here", path)
    assert caught.value.field == "here"


@given(st.text(max_size=30))
def test_a_path_that_is_taken_leads_below_where_it_starts(path: str) -> None:
    try:
        check_path("here", path)
    except SpecError:
        return
    assert not {"", ".", ".."} & set(path.split("/"))
    assert path.isprintable()


def test_a_name_has_no_slash() -> None:
    check_name("here", "data.tar")
    with pytest.raises(SpecError):
        check_name("here", "in/data.tar")


def test_inputs() -> None:
    def of(**said: Any) -> str:
        return problem(inputs=[{"name": "a", **said}])

    assert of(artifact_id=ID) == ""
    assert of(artifact_id=ID, path="in/a") == ""
    assert of(artifact_id="x") == "inputs[0].artifact_id"
    assert of() == "inputs[0]"
    assert of(artifact_id=ID, url="https://a/b", sha256=SHA) == "inputs[0]"
    assert of(url="https://a/b", sha256=SHA) == ""
    assert of(url="https://a/b") == "inputs[0].sha256"
    assert of(url="https://a/b", sha256="A" * 64) == "inputs[0].sha256"
    assert of(url="file:///etc/passwd", sha256=SHA) == "inputs[0].url"
    assert of(url="https://a/\nb", sha256=SHA) == "inputs[0].url"
    assert of(artifact_id=ID, path="../a") == "inputs[0].path"
    one = {"name": "a", "artifact_id": ID}
    assert problem(inputs=[one, one]) == "inputs[1].path"
    assert problem(inputs=[one, {**one, "name": "b", "path": "a/b"}]) == "inputs[1].path"
    assert problem(inputs=[{**one, "name": str(n)} for n in range(65)]) == "inputs"


def test_outputs_and_checkpoints() -> None:
    one = {"name": "m", "path": "out/**"}
    assert problem(outputs=[one]) == ""
    assert problem(outputs=[one, one]) == "outputs[1].name"
    assert problem(outputs=[{**one, "path": "/out"}]) == "outputs[0].path"
    assert problem(outputs=[{**one, "name": "a/b"}]) == "outputs[0].name"
    assert problem(outputs=[{**one, "max_bytes": 0}]) == "outputs[0].max_bytes"
    assert problem(outputs=[{**one, "max_bytes": 5_000_000_001}]) == "outputs[0].max_bytes"
    assert problem(checkpoint={"path": "c"}) == ""
    assert problem(checkpoint={"path": ".."}) == "checkpoint.path"
    assert problem(checkpoint={"path": "c", "every_s": 9}) == "checkpoint.every_s"


def test_ports_and_readiness() -> None:
    web = {"name": "web", "port": 80}
    assert problem(ports=[web], ready={"port": 80, "http": "/a?b=c"}) == ""
    assert problem(ports=[web], ready={"port": 81}) == "ready.port"
    assert problem(ports=[web], ready={"port": 80, "http": "a"}) == "ready.http"
    assert problem(ports=[web], ready={"port": 80, "http": "/\r\nHost: x"}) == "ready.http"
    assert problem(ports=[web], ready={"port": 80, "every_s": 0}) == "ready.every_s"
    assert problem(ports=[web, web]) == "ports[1].name"
    assert problem(ports=[web, {**web, "name": "b"}]) == "ports[1].port"
    assert problem(ports=[{**web, "name": "-"}]) == "ports[0].name"
    assert problem(ports=[{**web, "port": 65_536}]) == "ports[0].port"
    many = [{"name": f"a{n}", "port": n + 1} for n in range(17)]
    assert problem(ports=many) == "ports"


def test_times() -> None:
    assert problem(timeout_s=8_760 * 3_600, grace_s=600) == ""
    assert problem(timeout_s=-1) == "timeout_s"
    assert problem(timeout_s=8_760 * 3_600 + 1) == "timeout_s"
    assert problem(grace_s=601) == "grace_s"


@cases(
    ("resources", "field"),
    [
        (Resources(), ""),
        (Resources(2, "RTX 4090", 24.0, 0.5, 16.0, 20.0, "x86_64", "12.1"), ""),
        (Resources(gpus=65), "gpus"),
        (Resources(gpus=-1), "gpus"),
        (Resources(gpu_model="x" * 101), "gpu_model"),
        (Resources(gpu_model="a\nb"), "gpu_model"),
        (Resources(vram_gb=float("nan")), "vram_gb"),
        (Resources(cores=float("inf")), "cores"),
        (Resources(ram_gb=1e7), "ram_gb"),
        (Resources(disk_gb=-0.5), "disk_gb"),
        (Resources(arch="mips"), "arch"),
        (Resources(cuda="12.1.3"), "cuda"),
    ],
)
def test_resources(resources: Resources, field: str) -> None:
    if not field:
        check_resources(resources)
        return
    with pytest.raises(SpecError) as caught:
        check_resources(resources)
    assert caught.value.field == field


def test_the_deepest_paths_of_as_many_inputs_as_may_be_are_compared_at_once() -> None:
    paths = ["a/" * 500 + str(number) for number in range(64)]
    check_apart(paths)
    with pytest.raises(SpecError):
        check_apart([*paths, paths[0] + "/b"])
    assert seconds_of(lambda: check_apart(paths)) < 0.01
