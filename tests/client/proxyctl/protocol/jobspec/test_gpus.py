"""Names of GPUs as drivers tell them, and as people write them."""

from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol.jobspec import gpus

# Names of cards by their drivers, and other names of just this card.
NAMES = {
    "NVIDIA GeForce RTX 4090": ["RTX 4090", "rtx4090", "4090", "GeForce RTX 4090", "RTX_4090"],
    "NVIDIA GeForce RTX 4090 D": ["RTX 4090 D", "4090D"],
    "NVIDIA GeForce RTX 4090 Laptop GPU": ["RTX 4090 Laptop", "4090 mobile"],
    "NVIDIA GeForce RTX 5090": ["RTX5090", "5090"],
    "NVIDIA GeForce RTX 5090 D": ["5090 D"],
    "NVIDIA GeForce RTX 5070 Ti": ["5070 Ti", "RTX 5070Ti"],
    "NVIDIA GeForce RTX 4080 SUPER": ["RTX 4080 Super", "4080super"],
    "NVIDIA GeForce RTX 4080": ["RTX 4080"],
    "NVIDIA GeForce RTX 4070 Ti SUPER": ["4070 Ti Super", "RTX 4070TiSuper"],
    "NVIDIA GeForce RTX 4070 Ti": ["4070ti"],
    "NVIDIA GeForce RTX 4060 Ti": ["RTX 4060 Ti", "RTX 4060 Ti 16GB"],
    "NVIDIA GeForce RTX 3090": ["RTX 3090", "rtx-3090"],
    "NVIDIA GeForce RTX 3090 Ti": ["3090 Ti"],
    "NVIDIA GeForce RTX 3080": ["3080"],
    "NVIDIA GeForce RTX 3080 Ti": ["3080 Ti"],
    "NVIDIA GeForce RTX 3080 Ti Laptop GPU": ["3080 Ti laptop"],
    "NVIDIA GeForce RTX 3060": ["RTX 3060", "RTX 3060 12GB"],
    "NVIDIA GeForce RTX 2080 Ti": ["2080 Ti", "2080ti"],
    "NVIDIA GeForce RTX 2070 with Max-Q Design": ["RTX 2070 Max-Q", "2070 max q"],
    "NVIDIA GeForce RTX 2070 SUPER": ["2070 SUPER"],
    "NVIDIA GeForce GTX 1080 Ti": ["GTX 1080 Ti", "gtx1080ti"],
    "NVIDIA GeForce GTX 1660 SUPER": ["GTX 1660 Super"],
    "NVIDIA GeForce GTX 1660 Ti": ["GTX 1660 Ti"],
    "NVIDIA GeForce GTX 1060 3GB": ["GTX 1060 3GB"],
    "NVIDIA GeForce GTX 1060 6GB": ["GTX 1060 6 GB"],
    "GeForce GTX 980M": ["GTX 980M"],
    "NVIDIA TITAN RTX": ["Titan RTX"],
    "NVIDIA TITAN V": ["titan v"],
    "NVIDIA TITAN Xp": ["titan xp"],
    "NVIDIA A100-SXM4-80GB": ["A100 80GB SXM4", "A100-SXM4-80GB", "A100-SXM-80GB"],
    "NVIDIA A100-SXM4-40GB": ["A100 SXM4 40 GB"],
    "NVIDIA A100-PCIE-40GB": ["A100 PCIe 40GB"],
    "NVIDIA A100 80GB PCIe": ["A100 PCIe 80GB"],
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": ["A100 MIG 1g.5gb"],
    "NVIDIA A800-SXM4-80GB": ["A800"],
    "NVIDIA H100 80GB HBM3": ["H100 SXM", "H100 SXM5 80GB"],
    "NVIDIA H100 PCIe": ["H100 PCIe"],
    "NVIDIA H100 NVL": ["H100 NVL"],
    "NVIDIA H200": ["H200 SXM"],
    "NVIDIA H200 NVL": ["H200 NVL"],
    "NVIDIA GH200 480GB": ["GH200"],
    "NVIDIA B200": ["B200"],
    "NVIDIA L4": ["L4"],
    "NVIDIA L40": ["L40"],
    "NVIDIA L40S": ["L40S"],
    "NVIDIA A10": ["A10"],
    "NVIDIA A10G": ["A10G"],
    "NVIDIA A40": ["A40"],
    "Tesla T4": ["T4", "Tesla T4", "NVIDIA T4"],
    "Tesla V100-SXM2-16GB": ["V100 SXM2 16GB"],
    "Tesla V100-SXM2-32GB": ["V100 SXM2 32GB"],
    "Tesla V100S-PCIE-32GB": ["V100S"],
    "Tesla P100-PCIE-16GB": ["P100"],
    "Tesla K80": ["K80"],
    "Quadro RTX 6000": ["Quadro RTX 6000", "RTX 6000"],
    "NVIDIA RTX A6000": ["A6000", "RTX A6000"],
    "NVIDIA RTX 6000 Ada Generation": ["RTX 6000 Ada"],
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": ["RTX PRO 6000", "RTX Pro 6000 Blackwell"],
    "NVIDIA RTX 4000 SFF Ada Generation": ["RTX 4000 SFF Ada"],
    "NVIDIA RTX 4000 Ada Generation": ["RTX 4000 Ada"],
    "AMD Radeon RX 7900 XTX": ["RX 7900 XTX", "7900XTX"],
    "AMD Radeon RX 7900 XT": ["RX 7900 XT", "rx7900xt"],
    "AMD Radeon PRO W7900": ["W7900", "Radeon Pro W7900"],
    "AMD Instinct MI300X": ["MI300X"],
    "AMD Instinct MI250X": ["Instinct MI250X"],
    "Intel(R) Arc(TM) A770 Graphics": ["Arc A770", "Intel A770"],
}
PAIRS = [(wanted, name) for name, writings in NAMES.items() for wanted in writings]


@cases(("wanted", "name"), PAIRS)
def test_a_name_finds_its_card_and_no_other(wanted: str, name: str) -> None:
    assert [each for each in NAMES if gpus.fits(wanted, each)] == [name]
    assert gpus.is_known(wanted)


@cases("name", NAMES)
def test_the_name_of_the_driver_finds_it(name: str) -> None:
    assert gpus.fits(name, name)
    assert gpus.is_known(name)


@cases(
    ("wanted", "names"),
    [
        ("A100", {"A100-SXM4-80GB", "A100-SXM4-40GB", "A100-PCIE-40GB", "A100 80GB PCIe"}),
        ("A100 80GB", {"A100-SXM4-80GB", "A100 80GB PCIe"}),
        ("H100", {"H100 80GB HBM3", "H100 PCIe", "H100 NVL"}),
        ("GTX 1060", {"GeForce GTX 1060 3GB", "GeForce GTX 1060 6GB"}),
    ],
)
def test_the_bus_and_the_memory_may_be_open(wanted: str, names: set[str]) -> None:
    assert {each for each in NAMES if gpus.fits(wanted, each)} == {f"NVIDIA {n}" for n in names}


def test_the_name_of_a_maker_is_any_of_its_cards() -> None:
    found = {each for each in NAMES if gpus.fits("an NVIDIA GPU".removeprefix("an "), each)}
    assert "Tesla T4" in found
    assert not [each for each in found if "AMD" in each or "Intel" in each]
    assert {each for each in NAMES if gpus.fits("AMD", each)} == {
        each for each in NAMES if "AMD" in each
    }


@cases("name", ["", "GPU", "fast", "7", "4090000", "disk", "x86_64"])
def test_a_text_that_is_no_name_is_not_known(name: str) -> None:
    assert not gpus.is_known(name)


def test_all_ways_to_write_it_have_one_key() -> None:
    keys = {gpus.key(each) for each in ("RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090")}
    assert len(keys) == 1
    assert gpus.key("A100-SXM4-80GB") == gpus.key("NVIDIA A100 80 GB SXM")
    assert gpus.key("A100-SXM4-80GB") != gpus.key("A100-SXM4-40GB")
    assert gpus.memory_gb("A100-SXM4-80GB") == 80


def test_several_cards() -> None:
    assert gpus.count_and_name("2 x NVIDIA L4") == (2, "NVIDIA L4")
    assert gpus.count_and_name("NVIDIA L4") == (1, "NVIDIA L4")
    assert gpus.count_and_name(" ") == (0, "")
    assert gpus.fits("L4", "2 x NVIDIA L4")


@given(st.text(), st.text())
def test_any_two_texts_can_be_compared(wanted: str, name: str) -> None:
    assert gpus.fits(wanted, name) in (True, False)
    assert isinstance(gpus.key(name), str)


@given(st.sampled_from(list(NAMES)), st.sampled_from(list(NAMES)))
def test_names_of_one_key_fit_alike(one: str, other: str) -> None:
    if gpus.key(one) == gpus.key(other):
        assert all(gpus.fits(one, each) == gpus.fits(other, each) for each in NAMES)
