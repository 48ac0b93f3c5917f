"""Settings as each part wants them: units, and settings that depend on others."""

from decimal import Decimal

from support.base.cases import cases
from support.daemons.service import settings_for

from config.settings import Settings
from proxyd.limits import api_connections_total, connections_total
from proxyd.wiring import slices

DESCRIPTORS = 10_000


def settings(**sections: object) -> Settings:
    return settings_for("sqlite:///unused.db", **sections)


def test_buyers_get_the_bound_ports_where_no_public_ones_are_set() -> None:
    terms = slices.terms(settings(proxy={"host": "127.0.0.1"}), 1080, [1081, 1082])
    assert (terms.public_host, terms.public_port) == ("127.0.0.1", 1080)
    assert terms.passwordless_ports == (1081, 1082)


def test_buyers_get_the_public_ports_and_for_a_0_the_bound_one() -> None:
    public = {
        "public_host": "proxy.example.com",
        "public_port": 443,
        "public_passwordless_ports": (444, 0),
    }
    terms = slices.terms(settings(proxy=public), 1080, [1081, 1082])
    assert (terms.public_host, terms.public_port) == ("proxy.example.com", 443)
    assert terms.passwordless_ports == (444, 1082)


def test_money_is_in_millionths_and_times_in_seconds() -> None:
    market = {"session_days": 2, "session_cost_floor_usd": Decimal("0.01")}
    terms = slices.terms(settings(market=market), 1080, [])
    assert (terms.lifetime_seconds, terms.cost_floor) == (172_800, 10_000)
    jobs = slices.job_terms(settings(market={"fee_percent": Decimal("2.5"), "job_waiting_days": 1}))
    assert (jobs.fee, jobs.waiting_seconds) == (250, 86_400)


def test_devices_are_given_less_time_to_prepare_than_the_daemon_waits() -> None:
    terms = slices.dispatch_terms(settings(jobs={"prepare_seconds": 600}), DESCRIPTORS)
    assert terms.prepare_seconds == 540


@cases(
    ("verification", "host", "needs_verified"),
    [
        ("auto", "", False),
        ("auto", "mail.example.com", True),
        ("required", "", True),
        ("none", "mail.example.com", False),
    ],
)
def test_bonuses_wait_for_a_confirmed_address_where_e_mails_go_out(
    verification: str, host: str, needs_verified: bool
) -> None:
    market, mail = {"referral_verification": verification}, {"host": host}
    assert slices.rewards(settings(market=market, mail=mail)).needs_verified is needs_verified


@cases(
    ("api", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"tls_cert": "a.pem", "tls_key": "b.pem"}, "https://127.0.0.1:8080"),
        ({"base_url": "https://api.example.com/"}, "https://api.example.com"),
        (
            {"base_url": "https://api.example.com", "app_url": "https://example.com/"},
            "https://example.com",
        ),
    ],
)
def test_links_lead_to_the_web_application_or_else_to_the_api(
    api: dict[str, str], url: str
) -> None:
    assert slices.app_url(settings(api=api), 8080) == url


def test_no_bound_on_connections_passes_the_limit_of_the_descriptors() -> None:
    most, api_most = connections_total(0, DESCRIPTORS), api_connections_total(DESCRIPTORS)
    half = (
        DESCRIPTORS // 2
    )  # the most connections of the API; the proxy's limit is lower by that number
    rest = connections_total(0, DESCRIPTORS - (half - api_most))
    for wanted, total, api_total in ((0, most, api_most), (3, 3, 3), (10**9, rest, half)):
        limits = {"connections_total": wanted, "api_connections_total": wanted}
        both = settings(limits=limits)
        assert slices.limits(both, DESCRIPTORS).connections_total == total
        assert slices.api_limits(both, DESCRIPTORS).connections == api_total


@cases(("host", "is_address"), [("192.0.2.1", True), ("proxy.example.com", False)])
def test_a_public_host_may_be_an_address(host: str, is_address: bool) -> None:
    address = slices.public_address(settings(proxy={"public_host": host}))
    assert (address is not None) is is_address


def test_processes_share_the_ports_of_datagrams_and_nothing_else() -> None:
    one = slices.limits(settings_for("sqlite:///x.db"), DESCRIPTORS)
    each = slices.limits(settings_for("sqlite:///x.db", proxy={"processes": 4}), DESCRIPTORS)
    assert each.associations == one.associations // 4
    assert each.connections_total == one.connections_total
    many = settings_for("sqlite:///x.db", proxy={"processes": 64})
    assert slices.limits(many, 64).associations == 1


def test_exits_know_the_floors_of_countries_and_that_of_all_sessions() -> None:
    floors = {"price_per_gb_floor_usd": {"de": Decimal("0.05"), "any": Decimal("0.5")}}
    terms = slices.exit_terms(settings(exits=floors))
    assert [terms.price_floor((each,)) for each in ("de", "fr", "")] == [50_000, 500_000, 500_000]
    assert terms.session_price_floor == 100_000


def test_exits_take_their_part_of_the_descriptors_where_they_listen() -> None:
    without, having = settings(), settings(exits={"host": "127.0.0.1", "public_port": 443})
    assert slices.limits(having, DESCRIPTORS).connections_total < (
        slices.limits(without, DESCRIPTORS).connections_total
    )
    assert slices.limits(having, DESCRIPTORS, is_first=False) == slices.limits(without, DESCRIPTORS)
    limits = slices.exit_limits(having, DESCRIPTORS)
    assert limits.asks == 0
    assert (limits.exits_total, limits.exits_per_network) == (3_000, 8)
    assert slices.exits_host(having) == "127.0.0.1"
    assert (slices.exits_port(having, 1090), slices.exits_port(without, 1090)) == (443, 1090)


def test_the_process_with_the_exits_has_room_for_the_requests_of_the_others() -> None:
    exits = {"host": "127.0.0.1"}
    one, five = settings(exits=exits), settings(exits=exits, proxy={"processes": 5})
    assert slices.limits(five, DESCRIPTORS).connections_total < (
        slices.limits(one, DESCRIPTORS).connections_total
    )
    assert slices.exit_limits(five, DESCRIPTORS).asks == 125
