"""A job that no device runs: the needs that are not met, and the devices that come close."""

from msgspec import structs

from market.dispatch.lacking import Seen, compare, in_words
from market.jobs.hindrances import Hindrance
from market.jobs.matching import MILLION, Needs, Offer
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


def test_each_need_that_the_only_device_does_not_meet_is_named_with_its_offer() -> None:
    for resources, hindrance, words in (
        ({"cores": 64}, Hindrance.CORES, "it lends fewer than 64 cores (at most 8)."),
        ({"ram_gb": 500}, Hindrance.MEMORY, "it lends less than 500 GB of memory (at most 32)."),
        ({"disk_gb": 5_000}, Hindrance.DISK, "it lends less than 5000 GB of disk (at most 100)."),
        ({"arch": "aarch64"}, Hindrance.ARCHITECTURE, "it is not aarch64."),
        ({"gpu_model": "H100"}, Hindrance.GPU, "it lacks the GPUs (GPU: 1 x H100)."),
        ({"gpus": 2}, Hindrance.GPU, "it lacks the GPUs (GPUs: 2)."),
    ):
        found = compare(needs(**resources), None, [RIG])
        assert found is not None
        assert found.counts == {hindrance: 1}
        assert in_words(found, needs(**resources).resources) == (
            f"The only device that asks for work now does not run such a job: {words}"
        )


def test_a_price_below_the_least_of_every_device_is_named() -> None:
    dear = structs.replace(RIG, offer=structs.replace(OFFER, least_price=250_000 * MILLION))
    dearer = structs.replace(RIG, offer=structs.replace(OFFER, least_price=500_000 * MILLION))
    found = compare(needs(), 249_999 * MILLION, [dearer, dear])
    assert found is not None
    assert in_words(found, Resources()) == (
        "None of the 2 devices that ask for work now runs such a job: 2 ask for more, at least"
        " 0.25 USD an hour; 2 of them lack nothing else."
    )
    assert compare(needs(), 250_000 * MILLION, [dearer, dear]) is None
    assert compare(needs(), None, [dearer]) is None


def test_every_need_is_named_and_the_devices_that_lack_only_one_are_counted() -> None:
    weak = structs.replace(RIG, whole=Capacity(slots=1, cores=2, ram_gb=2))
    wanted = needs(cores=16, ram_gb=8)
    found = compare(wanted, None, [RIG, weak])
    assert found is not None
    assert (found.devices, found.close) == (2, 1)
    assert in_words(found, wanted.resources) == (
        "None of the 2 devices that ask for work now runs such a job: 2 lend fewer than 16 cores"
        " (at most 8) and 1 lends less than 8 GB of memory (at most 32); 1 of them lacks nothing"
        " else."
    )
    both = compare(needs(cores=64, ram_gb=500), None, [RIG])
    assert both is not None
    assert "cores (at most 8) and lends less than 500 GB of memory" in in_words(
        both, needs(cores=64, ram_gb=500).resources
    )


def test_one_device_that_lacks_nothing_is_enough() -> None:
    weak = structs.replace(RIG, whole=Capacity(slots=1))
    assert compare(needs(cores=8), None, [weak, RIG]) is None


def test_no_device_at_all_is_a_reason() -> None:
    found = compare(needs(cores=8), None, [])
    assert found is not None
    assert in_words(found, Resources()).startswith("No device has asked for work")


def test_a_device_that_was_always_busy_may_lend_anything() -> None:
    busy = structs.replace(RIG, whole=None)
    assert compare(needs(cores=64), None, [busy]) is None
