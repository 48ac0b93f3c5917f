"""Why a device gets no work: each waiting job is counted once, by the first thing in its way."""

from msgspec import structs
from support.market.work import EVERYTHING, offer

from market.jobs.hindrances import Compared, Device, Hindrance, compare
from market.jobs.matching import MILLION, JobBook, Needs, Offer, WaitingJob
from market.money.money import MICRO
from proxyctl.protocol.jobspec import Capacity, Resources

PLAIN = Needs(Resources(), "script")
OWNER = "owner"


def book(*kinds: tuple[Needs, int], price: int = MICRO, excluded: str = "") -> JobBook:
    """Return jobs that wait: a number of each kind."""
    made = JobBook()
    for kind, (needs, count) in enumerate(kinds):
        for number in range(count):
            job = WaitingJob(
                f"{kind}-{number}",
                needs,
                price=price * MILLION,
                created_at=0,
                excluded=frozenset((excluded,)) if excluded else frozenset(),
            )
            made.add(job)
    return made


def device(offered: Offer | None = None, reputation: int = 500_000) -> Device:
    return Device(offered or offer(), OWNER, reputation)


def test_with_nothing_waiting_there_is_nothing_in_the_way() -> None:
    assert compare(JobBook(), device()) == Compared(0, 0, {})


def test_each_job_is_counted_once_by_its_first_hindrance() -> None:
    asked = {
        Hindrance.JOB_TYPE: PLAIN._replace(job_type="training"),
        Hindrance.NETWORK: PLAIN._replace(has_network=True),
        Hindrance.EXECUTOR: PLAIN._replace(has_image=True),
        Hindrance.PORTS: PLAIN._replace(has_ports=True),
        Hindrance.ARCHIVES: PLAIN._replace(has_archives=True),
        Hindrance.CORES: PLAIN._replace(resources=Resources(cores=64)),
        Hindrance.MEMORY: PLAIN._replace(resources=Resources(ram_gb=64)),
        Hindrance.DISK: PLAIN._replace(resources=Resources(disk_gb=640)),
        Hindrance.ARCHITECTURE: PLAIN._replace(resources=Resources(arch="arm64")),
        Hindrance.GPU: PLAIN._replace(resources=Resources(gpu_model="RTX 4090")),
        Hindrance.REPUTATION: PLAIN._replace(min_reputation=600_000),
    }
    counts = dict(zip(asked, range(1, 20), strict=False))
    waiting = book(*((needs, counts[each]) for each, needs in asked.items()), (PLAIN, 3))
    less = offer(job_types=EVERYTHING - {"training"}, ports=frozenset(), archives=False)
    compared = compare(waiting, device(less))
    assert (compared.suitable, compared.waiting) == (3, 3 + sum(counts.values()))
    assert compared.hindrances == counts


def test_jobs_that_pay_too_little_are_counted_with_the_best_price_among_them() -> None:
    waiting = book((PLAIN, 2), price=MICRO)
    compared = compare(waiting, device(offer(least_usd=2 * MICRO)))
    assert compared == Compared(2, 0, {Hindrance.PRICE: 2}, best_price=MICRO * MILLION)


def test_of_several_low_prices_the_best_is_shown_and_the_wanted_one_is_not() -> None:
    waiting = book((PLAIN, 1), price=3 * MICRO)
    for number, price in enumerate((2 * MICRO, MICRO, 5 * MICRO)):
        waiting.add(WaitingJob(f"x{number}", PLAIN, price=price * MILLION, created_at=0))
    compared = compare(waiting, device(offer(least_usd=3 * MICRO)))
    assert (compared.suitable, compared.best_price) == (2, 2 * MICRO * MILLION)


def test_jobs_that_its_owner_may_not_have_are_counted_apart() -> None:
    compared = compare(book((PLAIN, 2), excluded=OWNER), device())
    assert compared == Compared(2, 0, {Hindrance.OWNER: 2})


def test_jobs_that_were_taken_out_are_not_counted() -> None:
    waiting = book((PLAIN, 3))
    waiting.remove("0-1")
    assert compare(waiting, device()) == Compared(2, 2, {})


def test_a_device_without_a_free_place_lacks_that() -> None:
    full = structs.replace(offer(), capacity=Capacity(cores=1))
    assert compare(book((PLAIN, 1)), device(full)) == Compared(1, 0, {Hindrance.SLOTS: 1})
