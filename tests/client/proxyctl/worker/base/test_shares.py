from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol.jobspec.payload import Resources
from proxyctl.worker.base.record import Lend
from proxyctl.worker.base.shares import Shares, capacity_fields
from proxyctl.worker.sensors.nvidia import Gpu

LEND = Lend(cores=4, ram_gb=8, disk_gb=20, max_jobs=3)
SMALL = Gpu("GPU-small", "RTX 3060", 12_288, "550", 0)
LARGE = Gpu("GPU-large", "RTX 4090", 24_564, "550", 1)


def test_a_job_that_asks_for_nothing_gets_an_equal_part() -> None:
    shares = Shares(LEND, [])
    for name in "abc":
        assert shares.take(name, Resources()) == ()
    assert shares.take("d", Resources()) is None
    shares.give_back("b")
    assert shares.free().slots == 1
    assert shares.take("d", Resources()) == ()


def test_no_gpu_is_shared_and_the_smallest_that_is_enough_is_given() -> None:
    shares = Shares(LEND, [LARGE, SMALL])
    assert shares.take("a", Resources(gpus=1, vram_gb=8)) == ("GPU-small",)
    # A card that is sold as 24 GB says that it has a little less.
    assert shares.take("b", Resources(gpus=1, vram_gb=24)) == ("GPU-large",)
    assert shares.take("c", Resources(gpus=1)) is None
    shares.give_back("a")
    assert shares.take("c", Resources(vram_gb=24)) is None
    assert shares.take("c", Resources(vram_gb=1)) == ("GPU-small",)


@cases("cores", [0.0104, 0.0106, 1.3, 0.7])
def test_reported_free_resources_are_given(cores: float) -> None:
    shares = Shares(LEND, [])
    shares.take("a", Resources(cores=cores, ram_gb=cores, disk_gb=cores))
    told = capacity_fields(shares.free())
    asked = Resources(cores=told["cores"], ram_gb=told["ram_gb"], disk_gb=told["disk_gb"])
    assert shares.take("b", asked) is not None
    assert told["cores"] > shares.free().cores - 0.001  # nor is anything to be lost


def test_no_more_memory_of_a_gpu_is_reported_than_it_has() -> None:
    large = Gpu("GPU-80", "H100", 81_559, "550", 0)
    shares = Shares(LEND, [large])
    asked = capacity_fields(shares.free())["vram_gb"] / 0.95
    assert shares.take("a", Resources(gpus=1, vram_gb=asked - 1e-9)) == ("GPU-80",)


def test_a_job_gets_the_model_that_it_asks_for() -> None:
    wanted = Resources(gpus=1, gpu_model="RTX 4090")
    shares = Shares(LEND, [SMALL, LARGE])
    assert shares.take("a", wanted) == ("GPU-large",)
    assert shares.take("b", wanted) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), max_size=40))
def test_no_more_is_given_than_is_lent(steps: list[tuple[int, int, bool]]) -> None:
    shares = Shares(LEND, [SMALL, LARGE])
    given_gpus: dict[str, tuple[str, ...]] = {}
    for number, cores, wants_gpu in steps:
        name = str(number)
        if name in given_gpus:
            shares.give_back(name)
            del given_gpus[name]
            continue
        gpus = shares.take(name, Resources(cores=cores, gpus=int(wants_gpu)))
        if gpus is not None:
            given_gpus[name] = gpus
        free = shares.free()
        assert min(free.cores, free.ram_gb, free.disk_gb, free.slots) >= 0
        uuids = [each for some in given_gpus.values() for each in some]
        assert len(uuids) == len(set(uuids))
        assert len(given_gpus) <= LEND.max_jobs
