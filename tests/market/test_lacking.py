"""A job that no device runs: the needs that are not met, and the devices that come close."""

from msgspec import structs

from market.hindrances import Hindrance
from market.lacking import Seen, compare, in_words
from market.matching import MILLION, Needs, Offer
from proxyctl.protocol.jobspec import Capacity, Resources

WHOLE = Capacity(
    slots=4,
    cores=8,
    ram_gb=32,
    disk_gb=100,
    gpus=1,
    vram_gb=24,
    gpu_names=("NVIDIA GeForce RTX 4090",),
    arch="x86_64",
)
OFFER = Offer(WHOLE, frozenset(("bwrap",)), frozenset(("script",)))
RIG = Seen(OFFER, WHOLE, 500_000)


def needs(**resources: object) -> Needs:
    return Needs(Resources(**resources), "script")  # type: ignore[arg-type]


def test_each_need_that_no_device_meets_is_named_with_the_number_of_devices() -> None:
    for resources, hindrance, words in (
        ({"cores": 64}, Hindrance.CORES, "1 lend fewer than 64 cores"),
        ({"ram_gb": 500}, Hindrance.MEMORY, "1 lend less than 500 GB of memory"),
        ({"disk_gb": 5_000}, Hindrance.DISK, "1 lend less than 5000 GB of disk"),
        ({"arch": "aarch64"}, Hindrance.ARCHITECTURE, "1 are no aarch64"),
        ({"gpu_model": "H100"}, Hindrance.GPU, "1 lack the GPUs (GPU: 1 x H100)"),
        ({"gpus": 2}, Hindrance.GPU, "1 lack the GPUs (GPUs: 2)"),
    ):
        found = compare(needs(**resources), None, [RIG])
        assert found is not None
        assert found.firsts == {hindrance: 1}
        assert in_words(found, needs(**resources).resources) == words


def test_a_price_below_the_least_of_every_device_is_named() -> None:
    dear = structs.replace(RIG, offer=structs.replace(OFFER, least_price=250_000 * MILLION))
    dearer = structs.replace(RIG, offer=structs.replace(OFFER, least_price=500_000 * MILLION))
    found = compare(needs(), 249_999 * MILLION, [dearer, dear])
    assert found is not None
    words = in_words(found, Resources())
    assert words == "2 ask for more, at least 0.25 USD an hour; 2 of them lack nothing else"
    assert compare(needs(), 250_000 * MILLION, [dearer, dear]) is None
    assert compare(needs(), None, [dearer]) is None


def test_devices_that_lack_one_thing_alone_are_counted() -> None:
    weak = structs.replace(RIG, whole=Capacity(slots=1, cores=2, ram_gb=2))
    found = compare(needs(cores=16, ram_gb=8), None, [RIG, weak, RIG])
    assert found is not None
    assert (found.devices, found.close) == (3, 2)
    assert in_words(found, needs(cores=16).resources).endswith("; 2 of them lack nothing else")


def test_one_device_that_lacks_nothing_is_enough_and_none_says_nothing() -> None:
    weak = structs.replace(RIG, whole=Capacity(slots=1))
    assert compare(needs(cores=8), None, [weak, RIG]) is None
    assert compare(needs(cores=8), None, []) is None


def test_a_device_that_was_always_busy_may_lend_anything() -> None:
    busy = structs.replace(RIG, whole=None)
    assert compare(needs(cores=64), None, [busy]) is None
