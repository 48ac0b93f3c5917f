"""What texts say that a job needs."""

from hypothesis import example, given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol.jobspec.checks import check_resources
from proxyctl.protocol.jobspec.payload import Resources
from proxyctl.protocol.jobspec.requirements import (
    ITEMS_MAX,
    PARTS_MAX,
    QUOTED_MAX_CHARACTERS,
    WARNINGS_MAX,
    Parsed,
    parse,
    text_of,
)

UNDERSTOOD = {
    "": Resources(),
    "GPU": Resources(gpus=1),
    "a GPU": Resources(gpus=1),
    "2 GPUs": Resources(gpus=2),
    "GPU: 2 x RTX 4090": Resources(2, "RTX 4090"),
    "RTX 4090": Resources(1, "RTX 4090"),
    "rtx4090": Resources(1, "rtx4090"),
    "4090": Resources(1, "4090"),
    "2x RTX 4090": Resources(2, "RTX 4090"),
    "2 RTX 4090": Resources(2, "RTX 4090"),
    "2\u00d7RTX 4090 GPUs": Resources(2, "RTX 4090"),
    "RTX 4090 x2": Resources(2, "RTX 4090"),
    "H100:8": Resources(8, "H100"),
    "gpu: A100": Resources(1, "A100"),
    "A100:80GB:2": Resources(2, "A100", 80.0),
    "A100-80GB:4": Resources(4, "A100", 80.0),
    "2x A100 80GB": Resources(2, "A100", 80.0),
    "A100 80GB PCIe": Resources(1, "A100 PCIe", 80.0),
    "A100-SXM4-40GB": Resources(1, "A100-SXM4", 40.0),
    "RTX 4060 Ti 16GB": Resources(1, "RTX 4060 Ti", 16.0),
    "GeForce RTX 4090 Laptop GPU": Resources(1, "GeForce RTX 4090 Laptop"),
    "gpu_name=RTX_4090": Resources(1, "RTX 4090"),
    "NVIDIA GPU": Resources(1, "NVIDIA"),
    "GPU with 24 GB": Resources(1, "", 24.0),
    "GPU with at least 24 GB": Resources(1, "", 24.0),
    "2 GPUs with 24 GB each": Resources(2, "", 24.0),
    "24 GB GPU": Resources(1, "", 24.0),
    "GPU: 24GB": Resources(1, "", 24.0),
    "24GB VRAM": Resources(1, "", 24.0),
    "VRAM: 24 GB (or more)": Resources(1, "", 24.0),
    "24 GB of VRAM": Resources(1, "", 24.0),
    "vram >= 24": Resources(1, "", 24.0),
    "gpu_ram>=24 num_gpus=2": Resources(2, "", 24.0),
    "RTX 4090 24GB 16GB RAM": Resources(1, "RTX 4090", 24.0, ram_gb=16.0),
    "16 GB RAM": Resources(ram_gb=16.0),
    "16GB": Resources(ram_gb=16.0),
    "RAM: 64": Resources(ram_gb=64.0),
    "RAM: 512 MB": Resources(ram_gb=0.512),
    "RAM: 16 GiB": Resources(ram_gb=17.18),
    "memory>=0.5": Resources(ram_gb=0.5),
    "8 cores": Resources(cores=8.0),
    "8-core CPU": Resources(cores=8.0),
    "8 vCPU": Resources(cores=8.0),
    "cpus: 8+": Resources(cores=8.0),
    "cpu_cores >= 8": Resources(cores=8.0),
    "minimum 8 cores": Resources(cores=8.0),
    "disk 100 GB": Resources(disk_gb=100.0),
    "1.5 TB storage": Resources(disk_gb=1_500.0),
    "cuda>=12.1": Resources(1, cuda="12.1"),
    "CUDA 12": Resources(1, cuda="12.0"),
    "x86_64": Resources(arch="x86_64"),
    "amd64": Resources(arch="x86_64"),
    "arch: arm64": Resources(arch="aarch64"),
    "no GPU": Resources(),
    "CPU only": Resources(),
    "gpus: 0": Resources(),
    "8 cores and 16 GB RAM": Resources(cores=8.0, ram_gb=16.0),
    "16GB RAM 8 cores": Resources(cores=8.0, ram_gb=16.0),
    "- RTX 4090\n- 16 GB RAM\n- 8 cores": Resources(1, "RTX 4090", cores=8.0, ram_gb=16.0),
    "RTX 4090, 1 GPU; 20 GB disk": Resources(1, "RTX 4090", disk_gb=20.0),
}


@cases("text", UNDERSTOOD)
def test_known_requirements_are_understood(text: str) -> None:
    assert parse(text) == Parsed(UNDERSTOOD[text])


@cases(
    ("text", "resources", "words"),
    [
        ("24GB..80GB", Resources(ram_gb=24.0), "not more than that"),
        ("GPU: 24GB..80GB", Resources(1, "", 24.0), "not more than that"),
        ("100 GB SSD", Resources(disk_gb=100.0), "kind of disk"),
        ("RTX 3090 or better", Resources(1, "RTX 3090"), "no other is chosen"),
        ("vram > 20", Resources(1, "", 20.0), "at least so much"),
        ("cuda 12.1.1", Resources(1, cuda="12.1"), "12.1"),
        ("8 cores, 16 cores", Resources(cores=16.0), "said twice"),
        ("docker", Resources(), "follows from its type"),
        ("fast internet, please", Resources(), "not understood"),
        ("GPU: 1 x Frobnicator 9000", Resources(1, "Frobnicator 9000"), "only one of this name"),
    ],
)
def test_some_requirements_are_taken_with_a_warning(
    text: str, resources: Resources, words: str
) -> None:
    parsed = parse(text)
    assert parsed.resources == resources
    assert words in parsed.warnings[0]
    assert not parsed.is_manual


@cases(
    "text",
    [
        "RTX 3090 or RTX 4090",
        "RTX 3090, RTX 4090",
        "<= 16 GB RAM",
        "exactly 2 cores",
        "99999 cores",
        "65 GPUs",
        "GPU: fast one",
        "compute_cap>=8.0",
        "country: DE",
        "reliability>=0.98",
        "Python 3.11",
        "16 GB RAM but not 32",
        "no GPU, RTX 4090",
        "a card with much memory",
        "half a GPU",
        "x" * 121 + " 8 cores",
        "8 cores," * (PARTS_MAX + 1),
        ("8 cores " * 10 + ",") * (ITEMS_MAX // 10 + 1),
    ],
)
def test_a_requirement_that_counts_and_is_unknown_fits_no_device(text: str) -> None:
    parsed = parse(text)
    assert parsed.is_manual
    assert any("no device is offered the job by itself" in each for each in parsed.warnings)


def test_a_part_that_is_not_understood_takes_no_other_with_it() -> None:
    parsed = parse("16 GB RAM, exactly 2 cores, 20 GB disk")
    assert parsed.resources == Resources(ram_gb=16.0, disk_gb=20.0)
    assert len(parsed.warnings) == 1


def test_warnings_are_few_and_quote_little() -> None:
    parsed = parse(";".join(["really \x1b[31m " + "nice " * 18] * (PARTS_MAX - 1)))
    assert len(parsed.warnings) == WARNINGS_MAX + 1
    assert parsed.warnings[-1] == f"{PARTS_MAX - 1 - WARNINGS_MAX} more warnings are left out."
    assert all(each.isprintable() for each in parsed.warnings)
    assert max(map(len, parsed.warnings)) < QUOTED_MAX_CHARACTERS + 120


_ITEMS = st.sampled_from([*UNDERSTOOD, "or better", "GPU:", "x", "24", "foo7", "with", "\x85", "Ⅷ"])
_TEXTS = st.text() | st.lists(_ITEMS, max_size=6).flatmap(
    lambda items: st.sampled_from([" ", ", ", " and ", " with ", ":", ""]).map(
        lambda between: between.join(items)
    )
)


@given(_TEXTS)
@example("GPU: 2 x 3 x foo7")
@example("GPU: foo7 24 GB, 48 GB VRAM")
@example("gpu: 7.")
def test_a_text_never_raises_and_its_printed_form_parses_to_the_same(text: str) -> None:
    parsed = parse(text)
    check_resources(parsed.resources)
    again = parse(text_of(parsed.resources))
    assert again.resources == parsed.resources
    assert not again.is_manual


@given(_TEXTS)
def test_nothing_is_dropped_silently(text: str) -> None:
    parsed = parse(text)
    said_something = any(each.isalnum() for each in text)
    says_no_gpu = any(each in text.lower() for each in ("no gpu", "cpu only", "gpus: 0", "gpu:0"))
    if parsed == Parsed(Resources()) and said_something and not says_no_gpu:
        assert _is_filler(text)


def _is_filler(text: str) -> bool:
    words = text.lower().replace(",", " ").replace("&", " ").replace(";", " ").split()
    filler = "and with a an of at least min min. minimum need needs require requires required or"
    rest = "more total each free available requirement requirements w/"
    return all(each.strip("()[]-.:*'\"") in (*filler.split(), *rest.split(), "") for each in words)
