"""Matching of jobs and devices: the best suitable job, and no job waits forever."""

import random
import sys
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.base.brief import examples

from market.jobs.matching import (
    COMPACTED_FROM,
    LOOKS_MAX,
    MILLION,
    SHAPES_PER_BUYER_MAX,
    DeviceBook,
    JobBook,
    Lack,
    Needs,
    Offer,
    WaitingJob,
    lack,
    suits,
)
from proxyctl.protocol.jobspec import Capacity, Resources

NOW = 1_800_000_000
HOUR = 3_600
PLAIN = Needs(Resources(), "script")
ANY = Offer(Capacity(slots=1, cores=8), frozenset(("bwrap",)), frozenset(("script", "docker")))


def job(
    name: str,
    *,
    price: int = 1,
    hours: float = 0,
    needs: Needs = PLAIN,
    excluded: frozenset[str] = frozenset(),
) -> WaitingJob:
    """Return a job that pays `price` USD per hour and has waited for `hours`."""
    paid = price * MILLION * MILLION
    return WaitingJob(
        name, needs, price=paid, created_at=NOW - int(hours * HOUR), excluded=excluded
    )


def names(book: JobBook, offer: Offer = ANY, owner: str = "") -> list[str]:
    return [each.id for each in book.best(offer, owner)]


def test_a_better_paid_hour_comes_first_and_age_counts_ten_percent_an_hour() -> None:
    book = JobBook()
    for each in (
        job("plain", price=10),
        job("older", price=10, hours=1),
        job("dearer", price=12),
        job("waited", price=10, hours=2),
        job("cheap and old", price=1, hours=27),
    ):
        book.add(each)
    assert names(book) == ["cheap and old", "waited", "dearer", "older", "plain"]


def test_of_the_same_price_and_age_the_one_posted_first_comes_first() -> None:
    book = JobBook()
    for name in ("c", "a", "b"):
        book.add(job(name))
    assert names(book) == ["a", "b", "c"]


def test_a_fitting_job_is_found_by_type_image_network_and_resources() -> None:
    assert suits(PLAIN, ANY)
    assert not suits(PLAIN._replace(job_type="training"), ANY)
    assert not suits(PLAIN._replace(has_image=True), ANY)
    assert suits(
        PLAIN._replace(has_image=True), structs.replace(ANY, executors=frozenset(("podman",)))
    )
    assert not suits(PLAIN, structs.replace(ANY, executors=frozenset(("podman",))))
    assert not suits(PLAIN._replace(has_network=True), ANY)
    assert suits(PLAIN._replace(has_network=True), structs.replace(ANY, has_network=True))
    listens = PLAIN._replace(has_ports=True)
    assert lack(listens, ANY) is Lack.PORTS
    engine = structs.replace(ANY, executors=frozenset(("bwrap", "podman")))
    serving = structs.replace(engine, ports=frozenset(("podman",)))
    assert not suits(listens, serving)  # it runs under bubblewrap
    assert suits(listens._replace(has_image=True), serving)
    unpacks = PLAIN._replace(has_archives=True)
    assert suits(unpacks, ANY)
    assert lack(unpacks, structs.replace(ANY, archives=False)) is Lack.ARCHIVES
    assert suits(PLAIN, structs.replace(ANY, archives=False))
    assert not suits(PLAIN._replace(resources=Resources(cores=9)), ANY)
    assert not suits(PLAIN, structs.replace(ANY, capacity=Capacity(slots=0, cores=8)))


def test_a_least_price_is_met_exactly() -> None:
    book = JobBook()
    for price in range(1, 200):
        book.add(WaitingJob(str(price), PLAIN, price=price, created_at=NOW))
    for least in (1, 50, 99, 199, 200):
        assert sorted(map(int, names(book, structs.replace(ANY, least_price=least)))) == list(
            range(least, 200)
        )


def test_owners_whose_devices_failed_at_a_job_do_not_get_it() -> None:
    book = JobBook()
    book.add(job("failed", excluded=frozenset(("bad",))))
    book.add(job("other"))
    assert names(book, owner="bad") == ["other"]
    assert names(book, owner="good") == ["failed", "other"]


def test_one_search_looks_at_a_bounded_number_of_jobs() -> None:
    book = JobBook()
    for number in range(LOOKS_MAX):
        book.add(job(f"{number:04}", price=2, excluded=frozenset(("bad",))))
    book.add(job("behind", price=1))
    assert names(book, owner="bad") == []


def test_a_buyer_has_room_for_a_bounded_number_of_shapes() -> None:
    book = JobBook()

    def of(buyer: str, number: int) -> WaitingJob:
        needs = PLAIN._replace(resources=Resources(cores=number))
        return WaitingJob(f"{buyer}{number}", needs, price=1, created_at=NOW, buyer=buyer)

    for number in range(SHAPES_PER_BUYER_MAX):
        assert book.has_room(of("greedy", number))
        book.add(of("greedy", number))
    assert not book.has_room(of("greedy", SHAPES_PER_BUYER_MAX))
    assert book.has_room(of("greedy", 0))
    assert book.has_room(of("other", SHAPES_PER_BUYER_MAX))
    book.remove("greedy7")
    assert book.has_room(of("greedy", SHAPES_PER_BUYER_MAX))


class Waiting(NamedTuple):
    """A device that waits."""

    name: str
    offer: Offer
    owner: str = ""
    network: str = ""
    reputation: int = 0


def test_a_job_finds_the_device_that_has_waited_longest_of_those_that_suit() -> None:
    book: DeviceBook[Waiting] = DeviceBook()
    small = Waiting("small", structs.replace(ANY, capacity=Capacity(slots=1, cores=1)))
    dear = Waiting("dear", structs.replace(ANY, least_price=2 * MILLION * MILLION))
    first, second = Waiting("first", ANY, "bad"), Waiting("second", ANY)
    for each in (small, dear, first, second):
        book.add(each)
    needy = job("needy", needs=PLAIN._replace(resources=Resources(cores=4)))
    assert book.find(needy) == first
    excluding = job("failed", needs=needy.needs, excluded=frozenset(("bad",)))
    assert book.find(excluding) == second
    assert book.find(job("well paid", price=2, needs=needy.needs)) == dear
    for each in (dear, first, second):
        book.remove(each)
        book.remove(each)
    assert (len(book), book.find(needy), book.find(job("any"))) == (1, None, small)


shapes = st.sampled_from(
    [PLAIN._replace(resources=Resources(cores=cores)) for cores in (1, 4, 8, 16)]
)
operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "take"]), st.integers(0, 30)),
    max_size=60,
)


@settings(max_examples=examples(150), deadline=None)
@given(operations, st.randoms(use_true_random=False))
def test_the_best_is_the_best_of_a_plain_list(
    done: list[tuple[str, int]], chance: random.Random
) -> None:
    book, model = JobBook(), dict[str, WaitingJob]()
    offers = [structs.replace(ANY, capacity=Capacity(slots=1, cores=cores)) for cores in (1, 4, 9)]
    for operation, number in done:
        name = f"{number:02}"
        if operation == "add":
            needs = PLAIN._replace(resources=Resources(cores=chance.choice((1, 4, 8, 16))))
            new = job(name, price=chance.randrange(1, 5), hours=chance.random() * 20, needs=needs)
            book.add(new)
            model[name] = new
        elif operation == "remove":
            assert (book.remove(name) is None) == (model.pop(name, None) is None)
        else:
            offer = structs.replace(
                chance.choice(offers), least_price=chance.randrange(0, 5) * MILLION * MILLION
            )
            fitting = [
                each
                for each in model.values()
                if suits(each.needs, offer) and each.price >= offer.least_price
            ]
            fitting.sort(key=lambda each: (each.place, each.id))
            assert [each.id for each in book.best(offer, "")] == [each.id for each in fitting]
            if fitting:
                book.remove(fitting[0].id)
                del model[fitting[0].id]
    assert len(book) == len(model)
    assert book.shapes == len({each.needs for each in model.values()})


def test_a_removed_job_does_not_stay_in_memory() -> None:
    book = JobBook()
    for number in range(10_000):
        name = str(number)
        book.add(job(name, needs=PLAIN._replace(resources=Resources(cores=1 + number % 7))))
        names(book)
        book.remove(name)
    assert (len(book), book.shapes) == (0, 0)
    assert len(book._in_order) <= COMPACTED_FROM + 1
    keeper = job("keeper", price=9)
    book.add(keeper)
    for number in range(1_000):
        book.add(job(str(number)))
        book.remove(str(number))
    [shape] = book._shapes.values()
    assert sum(map(len, shape.bands.values())) <= COMPACTED_FROM + 3


def test_a_job_that_was_taken_out_may_come_again() -> None:
    book, first = JobBook(), job("again")
    book.add(first)
    book.add(job("other", price=2))
    book.remove("again")
    book.add(first.again())
    assert names(book) == ["other", "again"]


def test_a_job_takes_the_memory_that_the_page_gives() -> None:
    one = job("0" * 36)
    entry = sys.getsizeof(one) + sys.getsizeof((0.0, "", one)) + sys.getsizeof(one.id)
    assert entry + sys.getsizeof(one.place) + sys.getsizeof(one.price) + 150 < 600
