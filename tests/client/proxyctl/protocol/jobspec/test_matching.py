"""Matches of jobs and devices, and their order."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol.jobspec.matching import (
    GAIN_PER_HOUR,
    fits,
    left,
    rank,
    shortage,
    version,
)
from proxyctl.protocol.jobspec.payload import Capacity, Resources

RIG = Capacity(
    slots=2,
    cores=8.0,
    ram_gb=32.0,
    disk_gb=100.0,
    gpus=2,
    vram_gb=24.564,
    gpu_names=("NVIDIA GeForce RTX 4090",) * 2,
    arch="x86_64",
    cuda="12.4",
)
WHOLE = Resources(2, "RTX 4090", 24.0, 8.0, 32.0, 100.0, "x86_64", "12.1")


def test_a_requirement_that_a_device_meets_fits() -> None:
    assert fits(Resources(), RIG)
    assert fits(WHOLE, RIG)
    assert fits(WHOLE, replace(RIG, arch="AMD64"))
    assert fits(WHOLE, replace(RIG, vram_gb=23.0))  # the drivers keep the rest


@cases(
    "lacks",
    [
        {"slots": 0},
        {"cores": 7.9},
        {"ram_gb": 31.9},
        {"disk_gb": 99.0},
        {"gpus": 1},
        {"vram_gb": 22.0},
        {"gpu_names": ("NVIDIA GeForce RTX 4090 Laptop GPU",) * 2},
        {"gpu_names": ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090")},
        {"gpu_names": ()},
        {"arch": "aarch64"},
        {"arch": ""},
        {"cuda": "12.0"},
        {"cuda": "9.2"},
        {"cuda": ""},
        {"cuda": "unknown"},
    ],
)
def test_a_resource_that_it_lacks_or_does_not_report_does_not_fit(lacks: dict[str, Any]) -> None:
    assert not fits(WHOLE, replace(RIG, **lacks))


@cases(
    ("lacks", "first"),
    [
        ({"slots": 0, "cores": 1.0}, "slots"),
        ({"cores": 7.9, "ram_gb": 1.0}, "cores"),
        ({"ram_gb": 31.9, "disk_gb": 1.0}, "memory"),
        ({"disk_gb": 99.0, "arch": ""}, "disk"),
        ({"arch": "aarch64", "gpus": 0}, "architecture"),
        ({"vram_gb": 22.0}, "gpu"),
        ({}, None),
    ],
)
def test_the_first_thing_that_it_lacks_is_named(lacks: dict[str, Any], first: str | None) -> None:
    assert shortage(WHOLE, replace(RIG, **lacks)) == first


def test_of_unlike_cards_those_that_fit_must_be_free_for_certain() -> None:
    wanted = Resources(1, "RTX 4090")
    names = ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090")
    assert fits(wanted, replace(RIG, gpu_names=names, gpus=2))
    assert not fits(wanted, replace(RIG, gpu_names=names, gpus=1))


def test_the_memory_in_a_name_counts() -> None:
    cards = replace(RIG, gpu_names=("NVIDIA GeForce RTX 4060 Ti",) * 2, vram_gb=8.2)
    assert fits(Resources(1, "RTX 4060 Ti"), cards)
    assert not fits(Resources(1, "RTX 4060 Ti 16GB"), cards)


def test_the_rest_is_less_by_the_job() -> None:
    rest = left(RIG, Resources(1, "", 24.0, 6.0, 16.0, 30.0))
    assert (rest.slots, rest.cores, rest.ram_gb, rest.disk_gb, rest.gpus) == (1, 2.0, 16.0, 70.0, 1)
    with pytest.raises(AssertionError):
        left(rest, Resources(cores=4.0))


_RESOURCES = st.builds(
    Resources,
    gpus=st.integers(0, 2),
    gpu_model=st.sampled_from(["", "RTX 4090", "rtx4090", "4090 24GB", "A100", "NVIDIA"]),
    vram_gb=st.sampled_from([0.0, 8.0, 24.0]),
    cores=st.sampled_from([0.0, 4.0, 16.0]),
    ram_gb=st.sampled_from([0.0, 8.0]),
    arch=st.sampled_from(["", "x86_64"]),
    cuda=st.sampled_from(["", "12.1"]),
)
_CAPACITIES = st.builds(
    replace,
    st.just(RIG),
    slots=st.integers(0, 2),
    cores=st.sampled_from([2.0, 8.0]),
    gpus=st.integers(0, 2),
    vram_gb=st.sampled_from([0.0, 10.0, 24.5]),
    gpu_names=st.sampled_from([(), RIG.gpu_names, ("Tesla T4", "NVIDIA GeForce RTX 4090")]),
    cuda=st.sampled_from(["", "12.1", "13"]),
)


@given(_RESOURCES, _CAPACITIES)
def test_a_larger_device_still_fits_and_no_device_lends_more_than_it_has(
    resources: Resources, capacity: Capacity
) -> None:
    if not fits(resources, capacity):
        return
    assert fits(resources, replace(capacity, cores=capacity.cores + 1, slots=capacity.slots + 1))
    rest = left(capacity, resources)
    assert min(rest.slots, rest.cores, rest.ram_gb, rest.disk_gb, rest.gpus) >= 0


def test_the_dearer_comes_first_and_a_waiting_job_gains() -> None:
    day = 86_400
    assert rank(2_000, day) > rank(1_000, day)
    assert rank(1_000, day) > rank(1_000, day + 1)
    later = day + 3_600
    assert rank(1_000, day) > rank(int(1_000 * GAIN_PER_HOUR) - 5, later)
    assert rank(1_000, day) < rank(int(1_000 * GAIN_PER_HOUR) + 5, later)
    assert rank(0, 0) > rank(1_000_000_000, 30 * day)  # nothing starves


def test_versions_are_numbers() -> None:
    assert version("12.10") > version("12.9")
    assert version("") == version("12.x") == ()
