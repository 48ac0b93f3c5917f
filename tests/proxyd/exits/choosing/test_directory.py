import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, pairwise, permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.base.brief import examples
from support.base.cases import cases

from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.choosing.bindings import LABEL_KEPT_SECONDS, Binding
from proxyd.exits.choosing.bounds import USUAL, DirectoryBounds
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Missing, Place, Region
from proxyd.exits.choosing.faults import GONE_SECONDS, SUSPECT_SECONDS
from proxyd.exits.choosing.past_picks import PER_SITE_AND_MINUTE
from proxyd.exits.choosing.standing import (
    COOLING_FAILURES,
    COOLING_MOST_SECONDS,
    COOLING_SECONDS,
    NEWCOMER_DIALS,
)
from proxyd.exits.choosing.wish import Wish, area_of, site_of
from proxyd.wire.wants import Wants, parse

BERLIN = Place("de", "berlin", "berlin", 3320, "residential")
MUNICH = Place("de", "bavaria", "munich", 3320, "mobile")
PARIS = Place("fr", "", "paris", 3215, "residential")
NO_WISH = Wants()


@dataclass(eq=False)
class Device:
    device_id: str
    place: Place = BERLIN
    owner_id: str = "owner"
    network: str = ""
    has_place: bool = True
    min_price_per_gb: int = 0
    features: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    is_elsewhere: bool = False
    is_spent: bool = False
    is_behind: bool = False
    since: int = field(default_factory=count(1).__next__)

    def __post_init__(self):
        self.network = self.network or f"network of {self.device_id}"

    def allows(self, port):
        return not self.ports or port in self.ports

    def has_place_for(self, buyer, *, datagrams):
        return self.has_place


@dataclass
class Book:
    """A directory, with defaults for the arguments of a pick."""

    directory: Directory[Device] = field(default_factory=lambda: Directory(random.Random(1).random))
    now: float = 1000.0
    dialled: int = 0

    def add(self, *devices):
        for each in devices:
            self.directory.add(each)
        return devices[0] if len(devices) == 1 else devices

    def fill(self, count, place=BERLIN, prefix="device"):
        return [self.add(Device(f"{prefix}-{number}", place)) for number in range(count)]

    def pick(
        self,
        wants="",
        *,
        session="session",
        owner="buyer",
        price=1,
        target="",
        tried=(),
        features=frozenset(),
        port=0,
    ):
        return self.directory.pick(
            parse(wants) if wants else NO_WISH,
            session_id=session,
            owner_id=owner,
            price_per_gb=price,
            target=target,
            tried=tried,
            now=self.now,
            features=features,
            port=port,
        )

    def note(self, device, *outcomes, buyer="", target="", began=None):
        """Note outcomes, each of another buyer at another site, and of a dial of now by default."""
        for outcome in outcomes:
            self.dialled += 1
            self.directory.note(
                device,
                outcome,
                self.now,
                began=self.now if began is None else began,
                buyer=buyer or f"buyer-{self.dialled}",
                target=target or f"site-{self.dialled}.com",
            )


def bounded(**bounds):
    """Return a book whose directory remembers and searches less (`DirectoryBounds`)."""
    return Book(Directory(random.Random(1).random, DirectoryBounds(**bounds)))


@pytest.fixture
def book():
    return Book()


# --- ports ---------------------------------------------------------------------------------------


def test_only_exits_are_drawn_that_allow_the_port(book):
    book.fill(400)
    for each in range(10):
        book.add(Device(f"web-{each}", ports=(80, 443)))
    german = book.add(Device("web", PARIS, ports=(443,)))
    for each in range(400):
        book.directory._files._members[f"device-{each}"].entry.ports = (80,)
    assert all(book.pick(port=443).ports[-1] == 443 for _ in range(100))
    assert book.pick("rotate", port=443) is not book.pick("rotate", port=443)
    assert book.pick("country-fr", port=443) is german
    assert book.pick("country-fr", port=80) is Missing.NOT_ALLOWED
    assert book.pick("country-fr", port=80, price=-1) is Missing.NO_EXIT
    assert book.pick("country-us", port=80) is Missing.NO_EXIT
    assert book.pick(port=22) is Missing.NOT_ALLOWED


def test_the_first_port_of_a_label_chooses_its_exit_and_others_are_refused(book):
    book.fill(50)
    for each in range(50):
        book.directory._files._members[f"device-{each}"].entry.ports = (
            (80,) if each % 10 else (443,)
        )
    for number in range(20):
        label = f"session-{number}"
        chosen = book.pick(label, port=443)
        assert chosen.ports == (443,)
        assert book.pick(label, port=80) is Missing.NOT_ALLOWED
        assert book.pick(f"{label}-strict", port=80) is Missing.NOT_ALLOWED
        assert book.pick(label, port=443) is chosen
    assert book.pick("session-new", port=22) is Missing.NOT_ALLOWED
    chosen = book.pick("session-new", port=80)
    book.directory.remove(chosen)
    assert book.pick("session-new", port=443).ports == (443,)


# --- presence ------------------------------------------------------------------------------------


def test_no_exit_is_chosen_where_none_is_attached(book):
    assert book.pick() is Missing.NO_EXIT
    assert book.pick("session-a") is Missing.NO_EXIT
    assert book.pick("session-a-strict") is Missing.NO_EXIT


def test_an_exit_is_chosen_while_it_is_there(book):
    device = book.add(Device("one"))

    assert book.pick() is device
    book.directory.remove(device)
    assert book.pick() is Missing.NO_EXIT
    book.directory.remove(device)  # twice is harmless
    assert not len(book.directory)
    assert not book.directory._files._buckets


def test_a_device_that_attaches_again_replaces_its_older_attachment(book):
    older, newer = Device("one"), Device("one", PARIS)
    book.add(older, newer)

    book.directory.remove(older)  # this is noticed later

    assert book.pick() is newer
    assert book.pick("country-de") is Missing.NO_EXIT


def test_of_one_network_one_exit_is_active_and_the_next_moves_up(book):
    first, second, third = book.add(*(Device(each, network="192.0.2.1") for each in "abc"))

    assert [book.directory.is_standby(each) for each in (first, second, third)] == [
        False,
        True,
        True,
    ]
    assert {book.pick() for _ in range(50)} == {first}
    assert book.directory.get("b") is second

    book.directory.remove(second)
    assert book.pick() is first
    book.directory.remove(first)
    assert book.pick() is third
    assert not book.directory.is_standby(third)
    book.directory.remove(third)
    assert not book.directory._files._lines


def test_of_one_network_the_first_attached_exit_is_active_in_any_order_of_notices(book):
    devices = [
        Device(each, network="192.0.2.1", since=at)
        for each, at in zip("cba", (5, 7, 7), strict=True)
    ]
    for order in permutations(devices):
        for each in order:
            book.add(each)
        assert {book.pick() for _ in range(20)} == {devices[0]}
        book.directory.remove(devices[0])
        assert book.pick() is devices[2]
        for each in devices:
            book.directory.remove(each)
    assert not book.directory._files._lines
    assert not book.directory._files._buckets


def test_an_exit_that_no_buyer_can_use_blocks_no_other_on_its_line(book):
    greedy, rare, own, cheap = book.add(
        Device("greedy", network="192.0.2.1", min_price_per_gb=900),
        Device("rare", network="192.0.2.1", ports=(5222,)),
        Device("own", network="192.0.2.1", owner_id="buyer"),
        Device("cheap", network="192.0.2.1"),
    )
    assert {book.pick(port=443) for _ in range(20)} == {cheap}
    assert {book.pick(port=443, price=900) for _ in range(20)} == {greedy}
    assert {book.pick(port=5222) for _ in range(20)} == {rare}
    assert {book.pick(port=443, owner="another") for _ in range(20)} == {own}
    assert len(book.directory) == 1
    own.has_place = False  # it is full, and the line carries no more for that
    assert isinstance(book.pick(port=443, owner="another"), Missing)


def test_an_exit_that_rests_blocks_no_other_on_its_line(book):
    spent, next_ = book.add(Device("1", network="192.0.2.1"), Device("2", network="192.0.2.1"))
    assert {book.pick() for _ in range(20)} == {spent}
    spent.is_spent, spent.has_place = True, False
    assert {book.pick() for _ in range(20)} == {next_}
    assert book.pick("session-a-strict") is next_
    spent.is_spent, spent.has_place = False, True
    assert book.pick("session-a-strict") is next_, "a label keeps its exit"
    assert {book.pick() for _ in range(20)} == {spent}
    for number in range(COOLING_FAILURES):
        book.note(spent, None, buyer=f"buyer {number}", target=f"{number}.example")
    assert {book.pick(owner="buyer 9") for _ in range(20)} == {next_}
    book.now += COOLING_SECONDS
    assert {book.pick(owner="buyer 9") for _ in range(20)} == {spent}


def test_a_household_is_one_line_and_so_are_an_accounts_devices_in_a_48(book):
    lines = [f"2001:db8:{site:x}:{net:x}::/64" for site in (1, 2) for net in range(0, 512, 64)]
    owners = {lines[-1]: "another"}
    for each in lines:
        book.add(Device(each, network=each, owner_id=owners.get(each, "owner")))
    # Four /56s: of each /48 the first one's account has one exit, and another account one more.
    chosen = {book.pick().device_id for _ in range(200)}
    assert chosen == {lines[0], lines[8]}
    book.directory.remove(book.directory.get(lines[12]))
    book.add(Device("mine", network="2001:db8:2:100::/64", owner_id="other", since=0))
    assert {book.pick().device_id for _ in range(300)} == {lines[0], lines[8], "mine"}


def test_devices_learn_whether_others_on_their_line_come_first(book):
    told = []
    book.directory.watch(
        lambda each: told.append((each.device_id, book.directory.is_standby(each)))
    )
    one, _ = book.add(Device("1", network="n"), Device("2", network="n"))
    book.directory.remove(one)
    book.add(Device("3", network="n", since=0))
    assert told == [("1", False), ("2", False), ("2", True), ("3", False)]


def test_an_exit_that_an_older_one_displaces_has_its_failures_remembered(book):
    newer = book.add(Device("newer", network="192.0.2.1", since=2))
    for _ in range(3):
        book.note(newer, None)
    older = book.add(Device("older", network="192.0.2.1", since=1))
    assert book.pick() is older
    book.directory.remove(older)
    assert book.pick() is Missing.NO_EXIT  # it still rests


def test_an_exit_that_moves_is_found_only_at_its_new_place(book):
    device = book.add(Device("one", BERLIN))

    device.place = PARIS
    book.directory.move(device)

    assert book.pick("country-fr") is device
    assert book.pick("country-de") is Missing.NO_EXIT
    assert book.directory.coverage() == {Region("fr", "", "paris"): 1}


def test_coverage_counts_the_exits_that_can_be_chosen_by_region(book):
    book.add(
        Device("a", BERLIN, network="192.0.2.1"),
        Device("b", BERLIN, network="192.0.2.1"),  # stands by
        Device("c", MUNICH),
        Device("d", MUNICH),
        Device("e", Place()),
    )

    assert book.directory.coverage() == {
        Region("de", "berlin", "berlin"): 1,
        Region("de", "bavaria", "munich"): 2,
        Region("", "", ""): 1,
    }


# --- wishes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "will_do"),
    [
        ("country-de", {"berlin", "munich"}),
        ("country-fr_de", {"berlin", "munich", "paris"}),
        ("country-eu", {"berlin", "munich", "paris"}),
        ("country-us", set()),
        ("state-bavaria", {"munich"}),
        ("city-paris", {"paris"}),
        ("country-de-city-paris", set()),
        ("country-us-city-paris", {"texan paris"}),
        ("asn-3320", {"berlin", "munich"}),
        ("asn-3320-city-berlin", {"berlin"}),
        ("asn-3215-city-berlin", set()),
        ("asn-9", set()),
        ("kind-residential", {"berlin", "paris"}),
        ("kind-mobile-country-de", {"munich"}),
        ("kind-datacenter", set()),
        ("kind-any", {"berlin", "munich", "paris", "texan paris", "unknown"}),
    ],
)
@pytest.mark.parametrize("how", ["", "-session-label{}"])
def test_an_exit_is_where_it_was_wished(book, wants, will_do, how):
    book.add(
        Device("berlin", BERLIN),
        Device("munich", MUNICH),
        Device("paris", PARIS),
        Device("unknown", Place()),
    )
    if wants in ("country-us-city-paris", "kind-any"):
        book.add(Device("texan paris", Place("us", "texas", "paris")))

    picks = [book.pick(wants + how.format(number)) for number in range(200)]

    assert {each.device_id for each in picks if isinstance(each, Device)} == will_do
    assert (Missing.NO_EXIT in picks) == (not will_do)


@pytest.mark.parametrize("wants", ["country-de", "country-de-session-{}"])
def test_an_unfit_exit_is_never_chosen(book, wants):
    book.add(
        Device("own", owner_id="buyer"),
        Device("dear", min_price_per_gb=101),
        Device("full", has_place=False),
        Device("tried"),
    )
    right = book.add(Device("right", min_price_per_gb=100))

    picks = {book.pick(wants.format(each), price=100, tried=("tried",)) for each in range(100)}
    assert picks == {right}
    book.directory.remove(right)
    picks = {book.pick(wants.format(each), price=100, tried=("tried",)) for each in range(100)}
    assert picks == {Missing.NO_EXIT}


def test_the_one_that_will_do_is_found_among_many(book):
    book.fill(400)
    for device in list(book.directory._files._members.values()):
        device.entry.has_place = device.entry.device_id == "device-77"

    assert {book.pick().device_id for _ in range(100)} == {"device-77"}


@pytest.mark.parametrize("wants", ["", "country-de", "kind-residential", "city-berlin", "rotate"])
def test_an_exit_that_carries_datagrams_is_found_among_many_that_do_not(book, wants):
    book.fill(3 * USUAL.searched_max)
    carries = [book.add(Device(f"udp-{number}", features=("udp",))) for number in range(2)]
    for _ in range(20):
        assert book.pick(wants, features=frozenset(("udp",))) in carries
    for each in carries:
        book.directory.remove(each)
    assert book.pick(wants, features=frozenset(("udp",))) is Missing.NO_EXIT


def test_a_label_keeps_its_exit_although_that_carries_no_datagrams(book):
    stream_only = book.add(Device("streams"))
    assert book.pick("session-a") is stream_only
    carries = book.add(Device("udp", features=("udp",)))
    assert book.pick("session-a", features=frozenset(("udp",))) is Missing.NO_EXIT
    assert book.pick("session-a") is stream_only
    assert book.pick("session-b", features=frozenset(("udp",))) is carries


def test_a_search_sees_each_exit_once_and_of_many_not_all(book):
    for place in (BERLIN, PARIS):
        book.fill(20, place, place.city)
    for wants in ("kind-any", "country-de_fr"):
        wish = Wish(area_of(parse(wants)), "", 0, "", (), 0.0, frozenset(), 0, {})
        buckets = book.directory._buckets_of(wish)
        for start in range(40):
            walk = [each.entry for each in book.directory._walk(buckets, 40, start)]
            assert len(walk) == len(set(walk)) == 40

    hasty = bounded(searched_max=25).directory
    assert len(list(hasty._walk(buckets, 40, 39))) == 25


def test_rotation_never_chooses_an_exit_twice_in_a_row(book):
    book.fill(2)
    picks = [book.pick("rotate").device_id for _ in range(20)]
    assert all(before != after for before, after in pairwise(picks))

    others = [book.pick("rotate", session="another") for _ in range(2)]
    assert others[0] is not others[1]


def test_rotation_with_a_single_exit_finds_no_other(book):
    book.fill(1)
    assert book.pick("rotate") is not Missing.NO_EXIT
    assert book.pick("rotate") is Missing.NO_EXIT
    book.directory.forget("session")
    assert book.pick("rotate") is not Missing.NO_EXIT


# --- distribution --------------------------------------------------------------------------------


def test_connections_are_spread_nearly_evenly(book):
    devices = book.fill(100)
    for each in devices:
        book.note(each, *[DialOutcome.CONNECTED] * NEWCOMER_DIALS)

    picks = Counter(book.pick().device_id for _ in range(10_000))

    assert len(picks) == 100
    assert max(picks.values()) < 2 * 100
    assert min(picks.values()) > 100 / 2


def test_they_are_where_few_exits_will_do(book):
    """Whose neighbours are all full would get the connections of them all."""
    will_do = []
    for number, each in enumerate(book.fill(600)):
        book.note(each, *[DialOutcome.CONNECTED] * NEWCOMER_DIALS)
        each.has_place = number % 20 == 0
        will_do += [each] * each.has_place

    picks = Counter(book.pick() for _ in range(30 * 300))

    assert set(picks) == set(will_do)
    assert max(picks.values()) < 1.5 * 300


def test_a_newcomer_gets_some_and_less_than_the_others(book):
    for each in book.fill(10):
        book.note(each, *[DialOutcome.CONNECTED] * NEWCOMER_DIALS)
    newcomer = book.add(Device("newcomer"))

    picks = Counter(book.pick() for _ in range(11_000))

    assert 20 < picks[newcomer] < 500  # of 1,000


def test_an_exit_that_often_fails_gets_less(book):
    bad, *good = book.fill(10)
    for _ in range(100):
        book.note(bad, DialOutcome.FAILED, DialOutcome.CONNECTED)
        for each in good:
            book.note(each, DialOutcome.CONNECTED, DialOutcome.CONNECTED)

    picks = Counter(book.pick() for _ in range(10_000))

    assert 0 < picks[bad] < min(picks[each] for each in good)


def test_three_failures_in_a_row_are_a_rest_and_each_is_longer(book):
    device = book.add(Device("one"))
    book.note(device, None, DialOutcome.FAILED)
    assert book.pick() is device

    for seconds in (30, 60, 120):
        book.note(device, DialOutcome.FAILED)
        book.note(device, DialOutcome.FAILED)  # had begun before: the rest is not longer
        book.now += seconds - 1
        assert book.pick() is Missing.NO_EXIT
        book.now += 1
        assert book.pick() is device

    book.note(device, DialOutcome.CONNECTED, None, None)
    assert book.pick() is device
    book.note(device, None)
    book.now += 30
    assert book.pick() is device


def test_a_full_exit_does_not_rest(book):
    device = book.add(Device("one"))
    book.note(device, *[DialOutcome.AT_LIMIT] * 10)
    assert book.pick() is device


def test_faults_that_one_buyer_meets_count_only_for_that_buyer(book):
    device = book.add(Device("one"))
    for seconds in (30, 60):
        book.note(device, *[DialOutcome.FAILED] * 3, buyer="mallory")
        assert book.pick(owner="mallory") is Missing.NO_EXIT
        assert book.pick(owner="another") is device
        book.now += seconds - 1
        assert book.pick(owner="mallory") is Missing.NO_EXIT
        book.now += 1
        assert book.pick(owner="mallory") is device


@pytest.mark.parametrize("buyer", ["buyer", ""])  # one, or another one for each
def test_dials_that_were_under_way_at_a_fault_are_no_further_faults(book, buyer):
    device, began = book.add(Device("one")), book.now
    for _ in range(2):
        book.now += 1
        book.note(device, *[None] * 10, buyer=buyer, began=began)
        assert book.pick() is device
        began = book.now
    book.now += 1
    book.note(device, *[None] * 10, buyer=buyer, began=began)
    assert book.pick() is Missing.NO_EXIT, "it has failed three times"


def test_a_fault_that_did_not_count_is_not_forgiven(book):
    one, two = book.add(Device("one"), Device("two"))
    for began in (book.now, book.now - 1):
        book.note(one, None, buyer="buyer", target="site.org", began=began)
    book.note(two, None, buyer="another", target="site.org")  # the site's fault
    for number in range(2):
        book.note(one, None, buyer="buyer", target=f"site-{number}.org")
    assert {book.pick() for _ in range(50)} == {two}


def test_faults_at_one_site_are_counted_once(book):
    device = book.add(Device("one"))
    for number in range(10):
        book.note(
            device, DialOutcome.FAILED, buyer=f"buyer-{number}", target=f"{number}.example.com"
        )
    assert book.pick() is device


def test_a_failure_through_two_exits_is_the_targets_fault(book):
    one, two = book.add(Device("one"), Device("two"))
    for number in range(10):
        for device in (one, two):
            book.note(device, None, target=f"site-{number}.org", buyer=f"buyer-{number % 4}")
    assert {book.pick() for _ in range(50)} == {one, two}
    assert {book.pick(owner="buyer-1") for _ in range(50)} == {one, two}
    assert one in {book.pick(owner="buyer-2") for _ in range(50)}


def test_a_site_that_answers_again_proves_nothing_of_exits_that_fail_there(book):
    one, two = book.add(Device("one"), Device("two"))
    for number in range(3):
        book.note(two, DialOutcome.FAILED, target=f"site-{number}.org")
        book.note(one, DialOutcome.CONNECTED, target=f"site-{number}.org")
    assert {book.pick() for _ in range(50)} == {one}


def test_a_few_sites_do_not_have_every_exit_rest(book):
    other, *devices = book.fill(20)
    for _ in range(3):  # so that each rests again after its rest
        for device in devices:
            for each in "abc":  # a site that refuses one exit, and answers the next one
                book.note(other, DialOutcome.CONNECTED, target=f"{each}.com")
                book.directory.contradict(
                    device, book.now, buyer=f"buyer-{each}", target=f"{each}.com"
                )
        assert len({book.pick() for _ in range(1000)}) == 19
        book.now += COOLING_MOST_SECONDS
    assert {book.pick() for _ in range(1000)} == {other, *devices}


def test_a_site_counts_against_another_exit_after_a_while(book):
    one, two, three = book.fill(3)
    for device in (one, two):
        for each in "abc":
            book.note(three, DialOutcome.CONNECTED, target=f"{each}.com")
            book.directory.contradict(device, book.now, buyer=each, target=f"{each}.com")
        assert device not in {book.pick() for _ in range(100)}
        book.now += SUSPECT_SECONDS


def test_the_word_of_an_exit_is_checked_while_it_is_new_and_after_a_contradiction(book):
    device = book.add(Device("one"))
    assert book.directory.doubts(device)
    book.note(device, *[DialOutcome.CONNECTED] * NEWCOMER_DIALS)
    checked = sum(book.directory.doubts(device) for _ in range(1000))
    assert 50 < checked < 200
    book.directory.contradict(device, book.now, buyer="a", target="a.com")
    assert all(book.directory.doubts(device) for _ in range(100))
    assert book.pick() is device
    for each in "bc":
        book.directory.contradict(device, book.now, buyer=each, target=f"{each}.com")
    assert book.pick() is Missing.NO_EXIT


def test_junk_for_tls_counts_for_all_when_another_exit_got_tls(book):
    one, two = book.add(Device("one"), Device("two"))
    book.note(one, *[DialOutcome.CONNECTED] * NEWCOMER_DIALS)
    directory = book.directory
    for each in "abcdef":
        directory.suspect(one, book.now, buyer=each, target=f"{each}.com")
        directory.prove(one, book.now, target=f"{each}.com")
    assert one in {book.pick() for _ in range(200)}, "a target can send anything"
    assert not directory._files._members["one"].standing.is_contradicted
    for each in "abc":
        directory.prove(two, book.now, target=f"{each}.com")
    assert {book.pick() for _ in range(200)} == {two}


def test_junk_for_tls_is_compared_for_a_while(book):
    one, two = book.add(Device("one"), Device("two"))
    for each in "abc":
        book.directory.suspect(one, book.now, buyer=each, target=f"{each}.com")
    book.now += SUSPECT_SECONDS
    for each in "abc":
        book.directory.prove(two, book.now, target=f"{each}.com")
    assert one in {book.pick() for _ in range(200)}


def test_three_junk_answers_have_an_exit_rest_for_their_buyer(book):
    device = book.add(Device("one"))
    for each in "abc":
        book.directory.suspect(device, book.now, buyer="mallory", target=f"{each}.com")
    assert book.pick(owner="mallory") is Missing.NO_EXIT
    assert book.pick(owner="another") is device


def test_a_rest_is_an_hour_at_most(book):
    device = book.add(Device("one"))
    for _ in range(30):
        book.note(device, None, None, None)
        book.now += COOLING_MOST_SECONDS
        assert book.pick() is device


def test_an_answer_of_a_target_is_no_failure_of_an_exit(book):
    device = book.add(Device("one"))
    book.note(
        device, *[DialOutcome.REFUSED, DialOutcome.TIMED_OUT, DialOutcome.HOST_UNREACHABLE] * 10
    )
    assert book.pick() is device


def test_an_exit_that_comes_back_is_still_known(book):
    device = book.add(Device("one"))
    book.directory.remove(device)
    book.note(device, None, None, None)  # its dials are lost after it

    again = book.add(Device("one"))
    assert book.pick() is Missing.NO_EXIT

    book.directory.remove(again)
    book.now += GONE_SECONDS
    book.directory.expire(book.now)
    assert not book.directory._faults._gone
    assert book.add(Device("one")) is book.pick()


def test_an_exit_that_attaches_anew_rests_on(book):
    device = book.add(Device("one"))
    book.note(device, None, None, None)
    book.directory.remove(device)
    book.directory.add(device)
    assert book.pick() is Missing.NO_EXIT


def test_an_exit_that_is_behind_is_chosen_only_where_there_is_no_other(book):
    behind, free = book.fill(2)
    behind.is_behind = True
    assert {book.pick() for _ in range(50)} == {free}
    free.has_place = False
    assert book.pick() is behind


def test_an_exit_is_not_worn_out_on_one_site(book):
    book.fill(2)
    most = PER_SITE_AND_MINUTE

    sites = ["192.0.2.1", "192.0.2.9", "192.0.2.254"]
    picks = Counter(book.pick(target=sites[each % 3]) for each in range(2 * most))
    assert set(picks.values()) == {most}

    # Both are worn now; better one of them than none.
    assert book.pick(target="192.0.2.7") is not Missing.NO_EXIT


def test_each_of_few_exits_is_looked_at_once_where_all_are_worn(book):
    looks = Counter()

    @dataclass(eq=False)
    class Watched(Device):
        def has_place_for(self, buyer, *, datagrams):
            looks[self.device_id] += 1
            return True

    exits = book.add(*(Watched(f"device-{number}") for number in range(3)))
    for _ in range(3 * PER_SITE_AND_MINUTE):
        book.pick(target="192.0.2.1")
    looks.clear()
    assert book.pick(target="192.0.2.1") in exits
    assert set(looks.values()) == {1}


@cases(
    ("target", "site"),
    [
        ("192.0.2.77", "192.0.2"),
        ("2001:db8:1:2::3", "2001:db8:1"),
        ("www.example.com", "example.com"),
        ("a.b.example.com", "example.com"),
        ("www.shop.co.uk", "shop.co.uk"),
        ("a.t7x.me", "t7x.me"),
        ("a.com.info", "com.info"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_sites(target, site):
    assert site_of(target) == site


# --- labels --------------------------------------------------------------------------------------


def test_a_label_keeps_its_exit_while_that_is_there(book):
    book.fill(50)
    labels = [f"country-de-session-{number}" for number in range(200)]
    chosen = {label: book.pick(label) for label in labels}
    assert len(set(chosen.values())) > 30

    for number in range(20):
        book.now += 20
        book.fill(3, prefix=f"more-{number}")
        assert all(book.pick(label) is device for label, device in chosen.items())


def test_labels_are_spread_over_all_exits(book):
    devices = book.fill(100)
    picks = Counter(
        book.pick(f"session-{number}", session=session)
        for session in "abcde"
        for number in range(1000)
    )
    assert set(picks) == set(devices)
    assert max(picks.values()) < 5 * 50


def test_a_label_is_its_sessions_and_its_places_own(book):
    book.fill(50)
    book.fill(50, PARIS, "french")

    assert len({book.pick("session-a", session=f"session {each}") for each in range(50)}) > 10
    assert book.pick("session-a-country-de").place == BERLIN
    assert book.pick("session-a-country-fr").place == PARIS
    assert book.pick("session-a-country-de").place == BERLIN


def test_a_restarted_daemon_finds_the_exits_of_labels_again(book):
    devices = book.fill(300)
    labels = [f"{place}session-{each}" for each in range(50) for place in ("country-de-", "")]
    chosen = [book.pick(label).device_id for label in labels]

    restarted = Book(Directory(random.Random(2).random), now=5.0)
    restarted.add(*reversed(devices))

    assert [restarted.pick(label).device_id for label in labels] == chosen


def test_an_exit_attached_from_a_network_goes_before_one_that_only_leaves_there(book):
    mover = book.add(Device("mover", network="192.0.2.1", since=1, is_elsewhere=True))
    assert book.pick() is mover
    local = book.add(Device("local", network="192.0.2.1", since=2))
    assert book.pick() is local
    assert book.directory.is_standby(mover)
    book.directory.remove(local)
    assert book.pick() is mover


def test_a_lifetime_ends_to_the_second_and_the_next_one_is_elsewhere(book):
    book.fill(200)
    label = "session-a-lifetime-90s"
    first, begun = book.pick(label), book.now

    book.now = begun + 89.99
    assert book.pick(label) is first
    book.now = begun + 90
    second = book.pick(label)
    assert second is not first
    assert not book.directory.take_move(parse(label), "session")  # that was promised
    book.now = begun + 179.99
    assert book.pick(label) is second


@pytest.mark.parametrize("how", ["gone", "dear", "cooling", "full"])
def test_a_soft_label_moves_within_its_country_and_says_so_once(book, how):
    book.fill(20)
    book.fill(20, PARIS, "french")
    wants = parse("session-a")
    first = book.pick("session-a", price=5)
    assert not book.directory.take_move(wants, "session")

    if how == "gone":
        book.directory.remove(first)
    elif how == "dear":
        first.min_price_per_gb = 6
    elif how == "cooling":
        book.note(first, None, None, None)
    else:
        first.has_place = False
    second = book.pick("session-a", price=5)

    assert second is not first
    assert second.place.country == first.place.country
    assert book.directory.take_move(wants, "session")
    assert not book.directory.take_move(wants, "session")
    first.has_place, first.min_price_per_gb = True, 0
    book.now += 60
    book.directory.add(first)
    assert book.pick("session-a", price=5) is second


def test_a_soft_label_leaves_the_country_if_it_may_and_must(book):
    book.add(Device("german", BERLIN), Device("french", PARIS))
    for label, stays in (("session-a", False), ("session-b-country-de_fr", False)):
        first = book.pick(label)
        book.directory.remove(first)
        assert isinstance(book.pick(label), Device) is not stays
        book.directory.add(first)
    german = book.pick("session-c-country-de")
    book.directory.remove(german)
    assert book.pick("session-c-country-de") is Missing.NO_EXIT


def test_a_strict_label_fails_rather_than_to_change(book):
    book.fill(20)
    label = "session-a-strict-lifetime-2"
    first, begun = book.pick(label), book.now

    book.directory.remove(first)
    assert book.pick(label) is Missing.EXIT_LOST
    book.add(Device(first.device_id))  # it is back, with another connection
    assert book.pick(label).device_id == first.device_id

    book.directory.remove(book.directory.get(first.device_id))
    book.now = begun + 119.9
    assert book.pick(label) is Missing.EXIT_LOST
    book.now = begun + 120
    assert isinstance(book.pick(label), Device)


def test_a_strict_label_of_a_full_exit_waits_for_it(book):
    book.fill(20)
    first = book.pick("session-a-strict")
    first.has_place = False
    assert book.pick("session-a-strict") is Missing.NO_EXIT
    first.has_place = True
    assert book.pick("session-a-strict") is first


@pytest.mark.parametrize("label", ["session-a", "session-a-strict"])
def test_a_target_that_does_not_answer_costs_no_label_its_exit(book, label):
    book.fill(20)
    first = book.pick(label)

    book.note(first, DialOutcome.TIMED_OUT)

    assert book.pick(label, tried=(first.device_id,)) is Missing.NO_EXIT
    assert book.pick(label) is first


def test_an_exit_that_fails_is_replaced_for_a_soft_label_at_once(book):
    book.fill(20)
    soft, strict = book.pick("session-a"), book.pick("session-b-strict")
    book.note(soft, None)
    book.note(strict, None)

    other = book.pick("session-a", tried=(soft.device_id,))
    assert other is not soft
    assert book.pick("session-a") is other
    assert book.pick("session-b-strict", tried=(strict.device_id,)) is Missing.EXIT_LOST
    assert book.pick("session-b-strict") is strict


# --- bounds --------------------------------------------------------------------------------------


def test_labels_are_bounded_by_session_and_in_all():
    book = bounded(labels_per_session=8, labels_total=20)
    book.fill(5)
    for session in range(10):
        for number in range(30):
            book.pick(f"session-{number}", session=f"session {session}")
            counted = [len(each) for each in book.directory._bindings._by_session.values()]
            assert max(counted) <= 8
            assert sum(counted) == book.directory._bindings._total <= 20
    assert "session 9" in book.directory._bindings._by_session


def test_one_account_with_many_labels_costs_no_other_its_own():
    book = bounded(labels_total=64)
    book.fill(20)
    first = book.pick("session-a-strict", owner="alice", session="alice's")
    for session in range(10):  # many sessions of one account, each within its own bound
        for number in range(30):
            book.pick(f"session-{number}", owner="mallory", session=f"{session}")
            assert (
                book.directory._bindings._total
                == sum(map(len, book.directory._bindings._by_session.values()))
                <= 64
            )
    assert book.pick("session-a-strict", owner="alice", session="alice's") is first
    book.directory.remove(first)
    assert book.pick("session-a-strict", owner="alice", session="alice's") is Missing.EXIT_LOST
    for session in ["alice's", *map(str, range(10))]:
        book.directory.forget(session)
    assert (
        book.directory._bindings._total,
        book.directory._bindings._held,
        book.directory._bindings._holders,
    ) == (0, {}, {})


def test_labels_that_other_nodes_have_bound_count_at_their_account():
    """An account with many sessions is one holder, so its labels are dropped first."""
    book = bounded(labels_total=64)
    book.fill(20)
    first = [book.pick(f"session-{n}-strict", owner="alice", session="alice's") for n in range(20)]
    for session in range(50):
        for number in range(4):
            wants = parse(f"session-{number}-strict")
            binding = Binding(first[0].device_id, "", 1e9, 0)
            book.directory.adopt(wants, f"{session}", binding, "mallory")
    assert set(book.directory._bindings._held) == {"alice", "mallory"}
    for number, device in enumerate(first):
        assert book.pick(f"session-{number}-strict", owner="alice", session="alice's") is device


def test_the_rest_is_bounded():
    book = bounded(rotating_total=10, sites_total=10, gone_total=10, suspects_total=10)
    devices = book.fill(50)
    for number, device in enumerate(devices):
        book.pick("rotate", session=f"session {number}", target=f"{number}.example")
        assert len(book.directory._picks._last) + len(book.directory._picks._last_before) <= 10
        assert len(book.directory._picks._sites) <= 10
        book.note(device, DialOutcome.CONNECTED)
        book.directory.contradict(device, book.now, buyer="a", target=f"{number}.com")
        assert len(book.directory._faults._blamed) <= 10
        book.directory.remove(device)
        assert len(book.directory._faults._gone) <= 10


def test_ended_records_are_forgotten_a_part_at_a_time():
    book = bounded(labels_per_sweep=3)
    book.fill(5)
    for session in range(10):
        book.pick("session-a", session=f"session {session}")
    book.now += 600 + LABEL_KEPT_SECONDS
    book.pick("session-a", session="young")

    book.directory.expire(book.now)
    assert 0 < book.directory._bindings._total < 11
    for _ in range(10):
        book.directory.expire(book.now)
    assert list(book.directory._bindings._by_session) == ["young"]
    assert book.directory._bindings._total == 1
    book.directory.forget("young")
    assert not book.directory._bindings._total


# --- against a naive model -----------------------------------------------------------------------

PLACES = [
    BERLIN,
    MUNICH,
    PARIS,
    Place("us", "texas", "paris", 3320, "datacenter"),
    Place("us", "", "", 0, ""),
    Place(),
]
WISHES = [
    "kind-any",
    "country-de",
    "country-fr_us",
    "country-eu-kind-residential",
    "city-paris",
    "city-paris-country-us",
    "state-bavaria-asn-3320",
    "asn-3320-kind-mobile",
]
OUTCOMES = [*DialOutcome, None]


class Machine(RuleBasedStateMachine):
    """The directory beside a list that is searched from end to end."""

    @initialize(seed=st.integers(0, 100))
    def begin(self, seed):
        self.book = Book(Directory(random.Random(seed).random))
        self.attached = []  # in the order that they came
        self.bound = {}  # (session, label text): [device, until]
        self.cooling = {}  # device: [failures, rests, until]
        self.last = {}  # session: device

    @property
    def first(self):
        by_network = {}
        for each in self.attached:
            by_network.setdefault(each.network, each)
        return list(by_network.values())

    @rule(
        device=st.integers(0, 11),
        place=st.sampled_from(PLACES),
        owner=st.sampled_from(["owner", "buyer"]),
        network=st.integers(0, 8),
        price=st.integers(0, 2),
    )
    def attach(self, device, place, owner, network, price):
        entry = Device(str(device), place, owner, f"n{network}", min_price_per_gb=price)
        self.attached = [each for each in self.attached if each.device_id != entry.device_id]
        self.attached.append(entry)
        self.book.add(entry)

    @rule(data=st.data())
    def detach(self, data):
        if self.attached:
            entry = data.draw(st.sampled_from(self.attached))
            self.attached.remove(entry)
            self.book.directory.remove(entry)

    @rule(data=st.data(), place=st.sampled_from(PLACES))
    def move(self, data, place):
        if self.attached:
            entry = data.draw(st.sampled_from(self.attached))
            entry.place = place
            self.book.directory.move(entry)

    @rule(data=st.data(), has_place=st.booleans())
    def fill(self, data, has_place):
        if self.attached:
            data.draw(st.sampled_from(self.attached)).has_place = has_place

    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def note(self, data, outcome):
        if not self.attached:
            return
        entry = data.draw(st.sampled_from(self.attached))
        self.book.note(entry, outcome)
        rests = self.cooling.setdefault(entry.device_id, [0, 0, 0.0])
        if outcome is DialOutcome.CONNECTED:
            rests[:2] = 0, 0
        elif outcome in (None, DialOutcome.PAUSED, DialOutcome.FAILED):
            rests[0] += 1
            if rests[0] >= 3 and rests[2] <= self.book.now:
                rests[2] = self.book.now + min(30.0 * 2 ** rests[1], 3600.0)
                rests[1] += 1

    @rule(seconds=st.sampled_from([1.0, 29.0, 60.0, 300.0]))
    def wait(self, seconds):
        self.book.now += seconds
        self.book.directory.expire(self.book.now)

    @rule(
        wish=st.sampled_from(WISHES),
        price=st.integers(0, 2),
        rotates=st.booleans(),
        tried=st.lists(st.integers(0, 11).map(str), max_size=2),
    )
    def pick(self, wish, price, rotates, tried):
        text = f"{wish}-rotate" if rotates else wish
        chosen = self.book.pick(text, price=price, tried=tried)
        last = self.last.get("session") if rotates else None
        will_do = [each for each in self.will_do(wish, price, tried) if each.device_id != last]
        assert chosen in will_do if will_do else chosen is Missing.NO_EXIT
        if rotates and will_do:
            self.last["session"] = chosen.device_id

    @rule(
        wish=st.sampled_from(WISHES),
        price=st.integers(1, 2),
        label=st.sampled_from("ab"),
        session=st.sampled_from(["one", "two"]),
        is_strict=st.booleans(),
    )
    def pick_by_label(self, wish, price, label, session, is_strict):
        text = f"{wish}-session-{label}-lifetime-2"
        chosen = self.book.pick(
            f"{text}-strict" if is_strict else text, session=session, price=price
        )
        will_do = self.will_do(wish, price, ())
        bound = self.bound.get((session, text))
        if bound is None or bound[1] <= self.book.now:
            if will_do:
                assert chosen in will_do
                self.bound[session, text] = [chosen.device_id, self.book.now + 120]
            else:
                assert chosen is Missing.NO_EXIT
            return
        same = [each for each in self.attached if each.device_id == bound[0]]
        if same and same[0] in will_do:
            assert chosen is same[0]
        elif is_strict:
            is_full = bool(same) and not same[0].has_place
            assert chosen is (Missing.NO_EXIT if is_full else Missing.EXIT_LOST)
        elif will_do:
            assert chosen in will_do
            bound[0] = chosen.device_id
        else:
            assert chosen is Missing.NO_EXIT

    @staticmethod
    def offers(entry, price):
        return entry.owner_id != "buyer" and entry.min_price_per_gb <= price

    def will_do(self, wish, price, tried):
        wants = parse(wish)
        return [
            each
            for number, each in enumerate(self.attached)
            if each.has_place
            and self.offers(each, price)
            and not any(
                other.network == each.network and self.offers(other, price)
                for other in self.attached[:number]
            )
            and each.device_id not in tried
            and self.cooling.get(each.device_id, (0, 0, 0.0))[2] <= self.book.now
            and (not wants.countries or each.place.country in wants.countries)
            and wants.state in ("", each.place.state)
            and wants.city in ("", each.place.city)
            and wants.asn in (0, each.place.asn)
            and wants.kind in ("", each.place.kind)
        ]

    @invariant()
    def same_exits(self):
        if not hasattr(self, "attached"):
            return
        directory = self.book.directory
        assert len(directory) == len(self.first)
        assert {each for each in self.attached if directory.is_standby(each)} == set(
            self.attached
        ) - set(self.first)
        counted = Counter(Region(*each.place[:3]) for each in self.first)
        assert directory.coverage() == counted
        for bucket in directory._files._buckets.values():
            assert list(bucket.rings) == sorted(each.ring for each in bucket.members)
            assert bucket.members


Machine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
test_it_does_as_a_naive_model = Machine.TestCase
