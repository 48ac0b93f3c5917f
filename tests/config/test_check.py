"""Settings that are well typed and still cannot be used."""

from decimal import Decimal

import msgspec
from support.base.cases import cases

from config.check import SIGNING_KEY_MIN_BYTES, contradictions
from config.settings import Settings
from market.accounts import tokens


def problems(**sections: dict[str, object]) -> list[str]:
    """Return the errors in the defaults with these settings."""
    return list(contradictions(msgspec.convert(sections, Settings)))


def blamed(**sections: dict[str, object]) -> list[str]:
    """Return the names of the settings that are to blame."""
    return [problem.partition(": ")[0] for problem in problems(**sections)]


def test_the_defaults_contradict_nothing() -> None:
    assert problems() == []


# --- networks ----------------------------------------------------------------------------------

NETWORKS = [("api", "trusted_proxies"), ("egress", "allow"), ("egress", "deny")]


@cases(("section", "key"), NETWORKS)
@cases("network", ["10.0.0.0/8", "127.0.0.1", "::/0", "fd00::/8", "0.0.0.0/0"])
def test_a_network_may_be_given(section: str, key: str, network: str) -> None:
    assert problems(**{section: {key: [network]}}) == []


@cases(("section", "key"), NETWORKS)
@cases("network", ["", "10.0.0.1/8", "10.0.0.0/33", "localhost", "10.0.0.0/8 "])
def test_a_text_that_is_no_network_is_named(section: str, key: str, network: str) -> None:
    (problem,) = problems(**{section: {key: [network]}})
    assert problem.startswith(f"{section}.{key}: ")
    assert repr(network) in problem or f"{network} has host bits set" in problem


def test_each_wrong_network_of_a_list_is_named() -> None:
    found = problems(egress={"allow": ["10.0.0.0/8", "one", "fd00::/8", "two"]})
    assert len(found) == 2
    assert "'one'" in found[0]
    assert "'two'" in found[1]


# --- name servers ------------------------------------------------------------------------------


@cases(
    "server",
    ["192.0.2.53", "192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:53", "127.0.0.1:65535"],
)
def test_a_name_server_is_an_address_and_perhaps_a_port(server: str) -> None:
    assert problems(egress={"nameservers": [server, "192.0.2.1"]}) == []


@cases(
    "server",
    [
        "",
        "dns.example",
        "192.0.2.53:",
        "192.0.2.53:0",
        "192.0.2.53:65536",
        "192.0.2.53:dns",
        "192.0.2.53:\u0665",
        "192.0.2.0/24",
        "[192.0.2.53]:53",
        "[2001:db8::53]",
        "[2001:db8::53]:",
    ],
)
def test_a_text_that_is_no_name_server_is_named(server: str) -> None:
    (problem,) = problems(egress={"nameservers": ["192.0.2.1", server]})
    assert problem.startswith("egress.nameservers: ")
    assert repr(server) in problem


# --- listening ---------------------------------------------------------------------------------


@cases("section", ["api", "proxy"])
@cases("host", ["localhost", "", "example.com", "127.0.0.1:80", "[::1]"])
def test_a_host_to_listen_on_is_an_address(section: str, host: str) -> None:
    (problem,) = problems(**{section: {"host": host}})
    assert problem == f"{section}.host: expected an IP address to listen on, got {host!r}"


@cases("host", ["127.0.0.1", "::1", "0.0.0.0", "::", "192.0.2.1"])
def test_the_api_may_listen_on_any_address(host: str) -> None:
    assert problems(api={"host": host}) == []


@cases("host", ["0.0.0.0", "::"])
def test_a_proxy_on_every_address_needs_a_host_to_dial(host: str) -> None:
    assert blamed(proxy={"host": host}) == ["proxy.public_host"]
    assert problems(proxy={"host": host, "public_host": "proxy.example.com"}) == []


@cases("host", ["http://a", "a/b", "a b", "localhost:1080", "[::1]", "ä.example"])
def test_the_address_that_buyers_dial_is_a_name_or_an_address(host: str) -> None:
    assert blamed(proxy={"public_host": host}) == ["proxy.public_host"]


@cases("host", ["localhost", "eu-1.example.com", "192.0.2.7", "2001:db8::7"])
def test_names_and_addresses_can_be_dialled(host: str) -> None:
    assert problems(proxy={"public_host": host}) == []


def test_the_api_and_the_proxy_cannot_share_a_port() -> None:
    assert problems(proxy={"port": 8080}) == ["proxy.port: 8080 is already taken by api.port"]
    assert blamed(api={"port": 1080}) == ["proxy.port"]


def test_two_addresses_may_have_the_same_port() -> None:
    assert problems(proxy={"port": 8080, "host": "127.0.0.2"}) == []


def test_any_free_port_twice_is_two_ports() -> None:
    assert problems(api={"port": 0}, proxy={"port": 0}) == []


def test_a_port_without_passwords_is_a_port_of_its_own() -> None:
    name = "proxy.passwordless_ports"
    assert problems(proxy={"passwordless_ports": [0, 0, 2000, 2001]}) == []
    assert problems(proxy={"passwordless_ports": []}) == []
    assert problems(proxy={"passwordless_ports": [2000, 1080, 8080]}) == [
        f"{name}: 1080 is already taken by proxy.port",
        f"{name}: 8080 is already taken by api.port",
    ]
    assert problems(proxy={"passwordless_ports": [2000, 2000]}) == [
        f"{name}: 2000 is already taken by {name}"
    ]
    elsewhere = {"host": "127.0.0.2", "passwordless_ports": [8080]}
    assert problems(proxy=elsewhere) == []


def test_any_free_port_without_passwords_clashes_with_no_other() -> None:
    assert problems(api={"port": 0}, proxy={"port": 0, "passwordless_ports": [0, 0]}) == []


def test_there_are_sixteen_ports_without_passwords_at_most() -> None:
    assert problems(proxy={"passwordless_ports": [0] * 16}) == []
    assert problems(proxy={"passwordless_ports": [0] * 17}) == [
        "proxy.passwordless_ports: expected at most 16 ports"
    ]


def test_each_port_without_passwords_has_a_public_one_or_none_has() -> None:
    both = {"passwordless_ports": [2000, 2001], "public_passwordless_ports": [3000, 0]}
    assert problems(proxy=both) == []
    (problem,) = problems(proxy={"public_passwordless_ports": [3000, 3001]})
    assert problem == (
        "proxy.public_passwordless_ports: expected 1 of them, one for each of "
        "proxy.passwordless_ports, or none, got 2"
    )


def test_a_certificate_and_its_key_go_together() -> None:
    assert blamed(api={"tls_cert": "cert.pem"}) == ["api.tls_key"]
    assert blamed(api={"tls_key": "key.pem"}) == ["api.tls_cert"]
    assert problems(api={"tls_cert": "cert.pem", "tls_key": "key.pem"}) == []


# --- URLs --------------------------------------------------------------------------------------


def test_without_the_console_letters_lead_to_pages_of_the_operator() -> None:
    assert blamed(api={"console": False}) == ["api.app_url"]
    assert problems(api={"console": False, "app_url": "https://app.example.com"}) == []


@cases("key", ["base_url", "app_url"])
@cases("url", ["", "http://localhost:8080", "https://api.example.com/path", "http://[::1]:8080"])
def test_a_url_of_the_web_may_be_given(key: str, url: str) -> None:
    assert problems(api={key: url}) == []


@cases("key", ["base_url", "app_url"])
@cases(
    "url", ["api.example.com", "ftp://example.com", "https://", "https:/example.com", "//x", "http"]
)
def test_a_text_that_is_no_url_of_the_web_is_named(key: str, url: str) -> None:
    (problem,) = problems(api={key: url})
    assert problem.startswith(f"api.{key}: expected a URL that starts with http:// or https://")
    assert repr(url) in problem


@cases("key", ["base_url", "app_url"])
@cases("url", ["http://[::1", "https://[example.com]/"])
def test_a_url_with_broken_brackets_is_named(key: str, url: str) -> None:
    assert blamed(api={key: url}) == [f"api.{key}"]


@cases("url", ["sqlite:///var/proxyd.db", "sqlite:////srv/proxyd.db", "sqlite:///proxyd.db"])
def test_a_file_of_sqlite_may_hold_everything(url: str) -> None:
    assert problems(storage={"url": url}) == []


def test_a_database_of_postgresql_may_hold_everything() -> None:
    storage = {"url": "postgresql://user:secret@db/proxyd"}
    assert problems(storage=storage, auth={"signing_key": "k" * 32}) == []


@cases("url", ["mysql://db/proxyd", "var/proxyd.db", "", "postgres://db/x"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    (problem,) = problems(storage={"url": url})
    assert problem.startswith("storage.url: expected sqlite:///path/to/file.db or postgresql://")


@cases("url", ["postgres://user:secret@db/proxyd", "postgresql:user:secret@db/proxyd"])
def test_the_password_of_a_database_is_not_repeated(url: str) -> None:
    problem = problems(storage={"url": url})[0]
    assert "secret" not in problem


@cases("url", ["sqlite:///", "sqlite:////"])
def test_a_url_of_sqlite_names_a_file(url: str) -> None:
    (problem,) = problems(storage={"url": url})
    assert problem.startswith("storage.url: expected a file")


@cases("url", ["sqlite://", "sqlite://proxyd.db", "sqlite://var/proxyd.db"])
def test_a_url_of_sqlite_has_three_slashes(url: str) -> None:
    (problem,) = problems(storage={"url": url})
    assert problem.startswith("storage.url: a path behind sqlite: needs three slashes")


# --- the signing key ---------------------------------------------------------------------------


def test_a_signing_key_has_thirty_two_bytes() -> None:
    assert problems(auth={"signing_key": "k" * 32}) == []
    assert problems(auth={"signing_key": "ü" * 16}) == []
    (problem,) = problems(auth={"signing_key": "k" * 31})
    assert problem == "auth.signing_key: must have at least 32 bytes"


def test_the_tokens_accept_each_value_that_the_settings_accept() -> None:
    assert SIGNING_KEY_MIN_BYTES == tokens.SIGNING_KEY_MIN_BYTES


def test_postgresql_needs_a_place_for_the_key() -> None:
    url = "postgresql://db/proxyd"
    assert blamed(storage={"url": url}) == ["auth.signing_key_file"]
    assert problems(storage={"url": url}, auth={"signing_key_file": "/etc/proxyd/key"}) == []


# --- prices ------------------------------------------------------------------------------------

DEFAULT, FLOOR = "price_per_gb_default_usd", "price_per_gb_floor_usd"


@cases("price", ["0.1", "1", "0.100001", "1000000", "1E+3"])
def test_a_price_may_be_given(price: str) -> None:
    assert problems(market={DEFAULT: price, FLOOR: price}) == []


def test_a_price_and_a_floor_of_zero_are_allowed() -> None:
    assert problems(market={DEFAULT: "0", FLOOR: "0"}) == []


@cases("price", ["NaN", "sNaN", "Infinity", "-Infinity", "-0.1", "1000000.000001"])
def test_a_number_that_is_no_price_is_named(price: str) -> None:
    (problem, *_) = problems(market={FLOOR: price})
    assert problem == f"market.{FLOOR}: expected an amount from 0 to 1000000, got {price}"
    assert f"market.{DEFAULT}: expected" in problems(market={DEFAULT: price})[0]


@cases("price", ["0.1000001", "1e-7", "1e-400", "0.30000000000000004"])
def test_a_price_has_six_decimals_at_most(price: str) -> None:
    (problem, *_) = problems(market={FLOOR: price})
    assert problem.startswith(f"market.{FLOOR}: has more than 6 decimals")


def test_zeros_at_the_end_are_no_decimals() -> None:
    assert problems(market={FLOOR: "0.10000000000"}) == []


def test_the_default_price_is_not_below_the_floor() -> None:
    assert problems(market={DEFAULT: "1.5", FLOOR: "1.5"}) == []
    (problem,) = problems(market={FLOOR: "1.5"})
    assert (
        problem
        == "market.price_per_gb_default_usd: 1.0 is below market.price_per_gb_floor_usd, 1.5"
    )


# --- all of them -------------------------------------------------------------------------------


def test_every_contradiction_is_reported_at_once() -> None:
    assert blamed(
        api={"host": "localhost", "base_url": "x", "tls_cert": "c", "trusted_proxies": ["x"]},
        proxy={"host": "0.0.0.0"},
        storage={"url": "postgresql://db/x"},
        egress={"allow": ["x"], "deny": ["y"]},
        market={FLOOR: "2"},
    ) == [
        "api.trusted_proxies",
        "egress.allow",
        "egress.deny",
        "api.host",
        "proxy.public_host",
        "api.tls_key",
        "api.base_url",
        "auth.signing_key_file",
        "market.price_per_gb_default_usd",
    ]


# --- the assistant -----------------------------------------------------------------------------


def test_a_model_needs_a_server_and_a_server_a_model() -> None:
    assert blamed(assistant={"model": "m"}) == ["assistant.base_url"]
    assert blamed(assistant={"vision_model": "m"}) == ["assistant.base_url"]
    assert blamed(assistant={"base_url": "http://127.0.0.1:8000/v1"}) == ["assistant.model"]
    for name in ("model", "vision_model"):
        assert problems(assistant={"base_url": "http://127.0.0.1:8000/v1", name: "m"}) == []
    assert blamed(assistant={"base_url": "127.0.0.1:8000", "model": "m"}) == ["assistant.base_url"]


@cases("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_not_repeated(key: str) -> None:
    (problem,) = problems(assistant={"api_key": key})
    assert problem.startswith("assistant.api_key: ")
    assert key not in problem


@cases("category", ["", "none", "unverified", "Two", "a b", "a__b", 'x"'])
def test_a_category_is_a_word(category: str) -> None:
    assert blamed(assistant={"rewards": {category: 1}}) == ["assistant.rewards"]


def test_a_reward_that_could_never_be_paid_is_named() -> None:
    low = {"rewards": {"giving": 40}, "reward_user_daily_credits": 39}
    assert blamed(assistant=low) == ["assistant.reward_user_daily_credits"]
    assert problems(assistant={**low, "reward_user_daily_credits": 0}) == []
    low = {"rewards": {"giving": 40}, "reward_user_daily_credits": 40}
    assert blamed(assistant={**low, "reward_total_daily_credits": 39}) == [
        "assistant.reward_total_daily_credits"
    ]
    for cap in (0, 40):
        assert problems(assistant={**low, "reward_total_daily_credits": cap}) == []


def test_bonuses_that_could_never_be_paid_are_named() -> None:
    low = {"referrer_reward_credits": 50, "referred_reward_credits": 25}
    assert blamed(market={**low, "referral_total_daily_credits": 74}) == [
        "market.referral_total_daily_credits"
    ]
    for cap in (0, 75):
        assert problems(market={**low, "referral_total_daily_credits": cap}) == []


# --- exits ---------------------------------------------------------------------------------------


@cases(
    ("exits", "blames"),
    [
        ({"host": "127.0.0.1"}, []),
        ({"host": "0.0.0.0", "public_host": "exits.example.com"}, []),
        ({"host": "exits.example.com"}, ["exits.host"]),
        ({"host": "0.0.0.0"}, ["exits.public_host"]),
        ({"ports": ()}, ["exits.ports"]),
        ({"ports": tuple(range(1, 257))}, []),
        ({"ports": tuple(range(1, 258))}, ["exits.ports"]),
        ({"host": "127.0.0.1", "port": 1080}, ["exits.port"]),
        ({"host": "127.0.0.1", "port": 8080}, ["exits.port"]),
        ({"public_host": "https://example.com"}, ["exits.public_host"]),
        ({"tls_cert": "cert.pem"}, ["exits.tls_key"]),
        ({"tls_key": "key.pem"}, ["exits.tls_cert"]),
        ({"price_per_gb_floor_usd": {"de": Decimal(1), "any": Decimal("0.5")}}, []),
        ({"price_per_gb_floor_usd": {"de": Decimal(-1)}}, ["exits.price_per_gb_floor_usd"]),
        ({"price_per_gb_floor_usd": {"all": Decimal(1)}}, ["exits.price_per_gb_floor_usd"]),
        ({"canaries": ("http://a.example/x", "https://b.example:8443/")}, []),
        ({"canaries": ("a.example", "http://a:99999/")}, ["exits.canaries"] * 2),
        ({"canaries": ("http://a.example:81/", "https://b.example/")}, ["exits.canaries"]),
        ({"canaries": ("http://a.example/",), "ports": (443,)}, ["exits.canaries"]),
    ],
)
def test_exits_are_reached_and_paid_as_can_be(exits: dict[str, object], blames: list[str]) -> None:
    assert blamed(exits=exits) == blames


@cases(
    ("apps", "blames"),
    [
        ({}, []),
        ({"host": "127.0.0.1", "domain": "localhost"}, []),
        ({"host": "0.0.0.0", "public_url": "https://apps.example.com"}, []),
        ({"host": "apps.example.com"}, ["apps.host"]),
        ({"host": "0.0.0.0"}, ["apps.public_url"]),
        ({"host": "127.0.0.1", "port": 8080}, ["apps.port"]),
        ({"host": "127.0.0.1", "port": 1090}, ["apps.port"]),
        ({"public_url": "apps.example.com"}, ["apps.public_url"]),
        ({"public_url": "https://example.com/apps"}, ["apps.public_url"]),
        ({"public_url": "https://a@example.com"}, ["apps.public_url"]),
        ({"domain": "https://example.com"}, ["apps.domain"]),
        ({"domain": "127.0.0.1"}, ["apps.domain"]),
        ({"tls_cert": "cert.pem"}, ["apps.tls_key"]),
        ({"tls_key": "key.pem"}, ["apps.tls_cert"]),
    ],
)
def test_apps_are_reached_as_can_be(apps: dict[str, object], blames: list[str]) -> None:
    assert blamed(apps=apps, exits={"host": "127.0.0.1"}) == blames


@cases(
    ("staff", "blames"),
    [
        ({}, []),
        ({"host": "127.0.0.1"}, []),
        ({"host": "::1", "port": 0}, []),
        ({"host": "10.0.0.1", "tls_cert": "cert.pem", "tls_key": "key.pem"}, []),
        ({"host": "0.0.0.0", "public_url": "https://staff.example.com"}, []),
        ({"host": "0.0.0.0"}, ["staff.tls_cert"]),
        ({"host": "staff.example.com"}, ["staff.host"]),
        ({"host": "127.0.0.1", "port": 8080}, ["staff.port"]),
        ({"host": "127.0.0.1", "allow": []}, ["staff.allow"]),
        ({"allow": ["everywhere"]}, ["staff.allow"]),
        ({"public_url": "staff.example.com"}, ["staff.public_url"]),
        ({"tls_cert": "cert.pem"}, ["staff.tls_key"]),
        ({"tls_key": "key.pem"}, ["staff.tls_cert"]),
    ],
)
def test_the_staff_is_reached_safely(staff: dict[str, object], blames: list[str]) -> None:
    assert blamed(staff=staff) == blames


def test_the_staff_and_apps_have_hosts_of_their_own() -> None:
    staff = {"host": "127.0.0.1", "public_url": "https://example.com:8082"}
    apps = {"host": "127.0.0.1", "public_url": "https://example.com:8081"}
    exits = {"host": "127.0.0.1"}
    assert blamed(staff=staff, apps=apps, exits=exits) == ["staff.public_url"]


def test_apps_without_a_url_are_at_the_address_that_they_listen_on() -> None:
    """A browser sends the cookies of the console and of the staff to every port of a host."""
    here, other = {"host": "192.0.2.5"}, {"host": "192.0.2.6"}
    urls = {"base_url": "http://192.0.2.5:8080"}
    staff = {**here, "allow": ["192.0.2.0/24"], "public_url": "https://192.0.2.5"}
    for api in (here, urls, {"app_url": "https://192.0.2.5/app"}):
        assert blamed(api=api, apps=here, exits=here) == ["apps.public_url"], api
        assert blamed(api=api, apps={**here, "domain": "a.test"}, exits=here) == [], api
        assert blamed(api=api, apps=other, exits=here) == [], api
    console = {**here, "base_url": "https://console.test"}
    assert blamed(api=console, apps=here, exits=here) == []
    anywhere = {"host": "0.0.0.0"}
    assert blamed(api=anywhere, apps=here, exits=here) == ["apps.public_url"]
    assert blamed(staff=staff, apps=here, exits=here) == ["staff.public_url"]
    assert blamed(staff=staff, apps=other, exits=here) == []
    # A demonstration, whose browser is on this machine.
    loopback = {"host": "127.0.0.1"}
    assert blamed(api=loopback, apps=loopback, exits=loopback, staff=loopback) == []


def test_apps_need_the_port_of_exits_and_an_origin_of_their_own() -> None:
    assert blamed(apps={"host": "127.0.0.1"}) == ["exits.host"]
    apps = {"host": "127.0.0.1", "public_url": "https://example.com"}
    for api in ({"base_url": "https://example.com/"}, {"app_url": "https://example.com:443/app"}):
        assert blamed(apps=apps, api=api, exits={"host": "127.0.0.1"}) == ["apps.public_url"]
    other = {"base_url": "https://example.com:8443"}
    assert blamed(apps=apps, api=other, exits={"host": "127.0.0.1"}) == ["apps.public_url"]
    hosts = {**apps, "domain": "apps.example.com"}
    assert blamed(apps=hosts, api=other, exits={"host": "127.0.0.1"}) == []


def test_exits_need_a_folder_for_their_certificate_and_any_number_of_processes() -> None:
    exits = {"host": "127.0.0.1"}
    assert blamed(exits=exits, proxy={"processes": 2}) == []
    postgres = {"url": "postgresql://localhost/proxyd"}
    auth = {"signing_key_file": "key"}
    assert blamed(exits=exits, storage=postgres, auth=auth) == ["exits.tls_cert"]
    own = {**exits, "tls_cert": "cert.pem", "tls_key": "key.pem"}
    assert blamed(exits=own, storage=postgres, auth=auth) == []


@cases(
    ("known", "are_blamed"),
    [
        ({"192.0.2.0/24": "de", "2001:db8::/32": "xx"}, False),
        ({"192.0.2.1/24": "de"}, True),
        ({"192.0.2.0/24": "DE"}, True),
        ({"192.0.2.0/24": "germany"}, True),
    ],
)
def test_a_known_network_is_in_a_country(known: dict[str, str], are_blamed: bool) -> None:
    assert blamed(geo={"known": known}) == ["geo.known"] * are_blamed


# --- samples -----------------------------------------------------------------------------------


def test_samples_without_a_payer_or_a_price_are_a_mistake() -> None:
    on: dict[str, object] = {"sample_credits_per_day": 5}
    assert blamed(jobs=on) == ["jobs.sample_account"]
    assert blamed(jobs={**on, "sample_account": "a@example.com"}) == []
    assert blamed(jobs={"sample_price_credit": 0}) == ["jobs.sample_price_credit"]


@cases(
    ("changes", "words"),
    [
        ({"methods": ["cash"]}, "payouts.methods: expected bank, paypal, manual, stripe, got cash"),
        ({"methods": ["stripe"]}, "payouts.methods: stripe needs payments.stripe_secret_key"),
        ({"fee_usd": "0.005"}, "payouts.fee_usd: expected whole cents, got 0.005"),
        ({"minimum_usd": "NaN"}, "payouts.minimum_usd: expected an amount"),
        ({"automatic_usd": "-1"}, "payouts.automatic_usd: expected an amount"),
    ],
)
def test_wrong_settings_of_payouts_are_named(changes: dict[str, object], words: str) -> None:
    assert [each.startswith(words) for each in problems(payouts=changes)] == [True]
