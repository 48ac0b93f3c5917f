import logging
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import process
from support.targets import mmdb

from config.load import SettingsError
from proxyd.exits.choosing.entries import Place
from proxyd.exits.choosing.geography import DEBIAN, REGISTRIES, Sources, open_geography

NOWHERE = (Path("/nonexistent/geoip"), Path("/nonexistent/geoip6"))
# Long registered, and to one registry's knowledge: newer releases of the data list them as well.
AMERICAN, GERMAN, JAPANESE = "8.8.8.8", "141.1.1.1", "2001:200::1"

CITIES = {
    "203.0.113.0/24": {
        "country": {"iso_code": "DE", "names": {"en": "Germany"}},
        "subdivisions": [{"iso_code": "BE", "names": {"en": "Land Berlin"}}],
        "city": {"names": {"en": "Berlin"}},
    },
    "198.51.100.0/25": {"country_code": "BR", "state1": "São Paulo", "city": "São Paulo"},
    "2001:db8::/32": {"country": "US", "region": "Missouri", "city": "St. Louis / Winston-Salem"},
}
NETWORKS = {
    "203.0.113.0/24": {"autonomous_system_number": 3320},
    "198.51.100.0/24": {"asn": "AS27699", "type": "isp"},
    "2001:db8::/32": {"asn": "AS15169", "type": "hosting"},
}


@pytest.fixture
def opened():
    """Opens geographies that are closed after the test; Debian's files are missing unless given."""
    geographies = []

    def open_(**sources):
        geographies.append(open_geography(Sources(**{"debian": NOWHERE, **sources})))
        return geographies[-1]

    yield open_
    for each in geographies:
        each.close()
        each.close()  # twice is harmless


@pytest.fixture
def debian(tmp_path):
    """Writes files as Debian's are."""

    def write(ipv4="", ipv6=""):
        files = tmp_path / "geoip", tmp_path / "geoip6"
        for path, lines in zip(files, (ipv4, ipv6), strict=True):
            path.write_text(f"# License: CC BY-SA 4.0\n#\n{lines}")
        return files

    return write


def test_the_packaged_source_knows_countries_of_both_families(opened):
    geography = opened()

    assert geography.place(AMERICAN) == Place("us")
    assert geography.place(JAPANESE).country == "jp"
    assert geography.place(f"::ffff:{AMERICAN}").country == "us"
    assert geography.attribution == (REGISTRIES,)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "fe80::1%eth0", "2001:db8::1", "", "not an address"]
)
def test_an_unknown_address_is_nowhere(opened, address):
    assert opened().place(address) == Place()


def test_a_known_network_is_final_and_the_narrowest_counts(opened):
    known = {"8.0.0.0/8": "de", "8.8.8.0/24": "FR", "2001:200::/32": "xx", "127.0.0.0/8": "xx"}
    geography = opened(known=known)

    assert geography.place(AMERICAN).country == "fr"
    assert geography.place("8.9.9.9").country == "de"
    assert geography.place(JAPANESE).country == "xx"
    assert geography.place("127.0.0.1").country == "xx"
    assert geography.place("9.9.9.9").country == "us"


def test_sources_that_differ_know_no_country(opened, debian):
    files = debian(
        ipv4="134744064,134744319,US\n134744320,134744575,CA\n134744576,134744600,??\n",
        ipv6="2001:200::,2001:200:ffff:ffff:ffff:ffff:ffff:ffff,KR\n"
        "2001:500:12::1,2001:500:12::2,FR\n",
    )
    geography = opened(debian=files)

    assert geography.place("8.8.8.8").country == "us"
    assert geography.place("8.8.9.9").country == ""  # registered in the US, used in Canada
    assert geography.place("8.8.10.1").country == "us"  # it says nothing
    assert geography.place("9.9.9.9").country == "us"  # it has nothing
    assert geography.place(JAPANESE).country == ""
    assert geography.attribution == (REGISTRIES, DEBIAN)


def test_each_source_has_an_opinion(opened, debian, tmp_path):
    geography = opened(
        known={"9.0.0.0/8": "xx"},
        debian=debian(ipv4="134744064,134744319,US\n134744320,134744575,CA\n"),
    )

    assert geography.opinions("8.8.9.9") == {"registries": "us", "ipfire": "ca"}
    assert geography.opinions("8.9.9.9") == {"registries": "us", "ipfire": ""}
    assert geography.opinions("9.9.9.9") == {"known": "xx", "registries": "us", "ipfire": ""}
    assert geography.opinions("nothing") == {}

    country = mmdb.write(tmp_path / "c.mmdb", {"8.8.8.0/24": {"country": {"iso_code": "GB"}}})
    assert opened(country=country).opinions("8.8.8.8") == {"country_file": "gb"}


def test_ranges_end_where_they_end(opened, debian):
    ipv4 = "134744072,134744072,CA\n134744074,134744080,CA\n"
    ipv6 = "2001:200::,2001:200:0:0:ffff:ffff:ffff:ffff,KR\n"
    geography = opened(debian=debian(ipv4, ipv6))

    countries = [geography.place(f"8.8.8.{last}").country for last in (7, 8, 9, 10, 16, 17)]
    assert countries == ["us", "", "us", "", "", "us"]
    assert geography.place("2001:200::ffff").country == ""
    assert geography.place("2001:200:0:1::").country == "jp"


def test_files_of_an_operator_replace_the_bundled_ones(opened, debian, tmp_path):
    country = mmdb.write(
        tmp_path / "c.mmdb", {"8.8.8.0/24": {"country": {"iso_code": "GB"}}}, description="Mine"
    )
    geography = opened(country=country, debian=debian("134744064,134744319,US\n"))

    assert geography.place(AMERICAN) == Place("gb")
    assert geography.place("9.9.9.9") == Place()
    assert geography.attribution == ("Mine",)


def test_city_state_and_network_are_spelled_as_buyers_write_them(opened, tmp_path):
    geography = opened(
        city=mmdb.write(tmp_path / "city.mmdb", CITIES, kind="DBIP-City-Lite"),
        asn=mmdb.write(tmp_path / "asn.mmdb", NETWORKS, kind="ipinfo standard_asn.mmdb"),
    )

    assert geography.place("203.0.113.9") == Place("de", "land_berlin", "berlin", 3320, "")
    assert geography.place("198.51.100.9") == Place(
        "br", "sao_paulo", "sao_paulo", 27699, "residential"
    )
    assert geography.place("198.51.100.200") == Place(asn=27699, kind="residential")
    assert geography.place("2001:db8::1") == Place(
        "us", "missouri", "st._louis_winston_salem", 15169, "datacenter"
    )
    assert [each.partition(",")[2] for each in geography.attribution] == [
        " https://db-ip.com",
        " https://ipinfo.io",
    ]


def test_a_city_in_another_country_is_not_found(opened, tmp_path):
    city = mmdb.write(tmp_path / "city.mmdb", CITIES)
    country = mmdb.write(
        tmp_path / "country.mmdb",
        {"203.0.113.0/24": {"country_code": "AT"}, "198.51.100.0/24": {"country_code": "BR"}},
    )

    geography = opened(country=country, city=city)
    assert geography.place("203.0.113.9") == Place()
    assert geography.place("198.51.100.9").city == "sao_paulo"

    geography = opened(city=city, known={"203.0.113.0/25": "at"})
    assert geography.place("203.0.113.9") == Place("at")


def test_a_file_of_ipv4_knows_no_ipv6(opened, tmp_path):
    records = {"203.0.113.0/24": {"country_code": "DE"}}
    geography = opened(country=mmdb.write(tmp_path / "c.mmdb", records, ip_version=4))

    assert geography.place("203.0.113.9") == Place("de")
    assert geography.place("2001:db8::1") == Place()


@pytest.mark.parametrize("name", ["country", "city", "asn"])
def test_every_file_that_will_not_do_is_named_with_its_setting(opened, tmp_path, name):
    def problem(path):
        with pytest.raises(SettingsError) as refused:
            opened(**{name: str(path)})
        (line,) = refused.value.problems
        assert line.startswith(f"geo.{name}: {path} ")
        return line.removeprefix(f"geo.{name}: {path} ")

    missing, text, cut = (tmp_path / each for each in ("missing.mmdb", "text.mmdb", "cut.mmdb"))
    text.write_text("country,de\n")
    whole = Path(mmdb.write(tmp_path / "whole.mmdb", CITIES)).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    other = Path(mmdb.write(tmp_path / "other.mmdb", {"203.0.113.0/24": {"colour": "red"}}))

    assert problem(missing) == "cannot be read: No such file or directory"
    assert problem(tmp_path).startswith("cannot be read: ")
    assert problem(text).startswith("cannot be read: ")
    assert problem(cut).startswith("cannot be read: ")
    assert "is a file of something else (Test)" in problem(other)


def test_all_mistakes_are_reported_at_once(opened):
    with pytest.raises(SettingsError) as refused:
        opened(country="/a", city="/b", known={"1.2.3.4/8": "de", "192.0.2.0/24": "zz"})

    assert [line.partition(":")[0] for line in refused.value.problems] == [
        "geo.country",
        "geo.city",
        "geo.known",
        "geo.known",
    ]


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "words"),
    [
        ("134744064,134744319,US\nrubbish\n", "", "geoip, line 4"),
        ("134744064,134744319,US\n134744000,134744001,US\n", "", "not in order"),
        ("0,4294967296,US\n", "", "no IPv4 address"),
        ("", "2001:200::,nonsense,JP\n", "geoip6, line 3"),
    ],
)
def test_damaged_files_of_debian_are_named(opened, debian, ipv4, ipv6, words):
    with pytest.raises(SettingsError) as refused:
        opened(debian=debian(ipv4, ipv6))

    (line,) = refused.value.problems
    assert words in line
    assert "tor-geoipdb" in line


def test_a_file_that_is_damaged_later_costs_the_place_and_is_logged_once(opened, tmp_path, caplog):
    path = tmp_path / "c.mmdb"
    records = {"203.0.113.0/24": {"country_code": "DE"}, "198.51.100.0/24": {"country_code": "FR"}}
    mmdb.write(path, records)
    geography = opened(country=str(path))
    assert geography.place("198.51.100.1") == Place("fr")

    content = path.read_bytes()
    damaged = content.replace(b"country_code\x42FR", b"country_code\x00\xff\xff")
    assert damaged != content
    with path.open("r+b") as file:  # in place: a file that is mapped must not get shorter
        file.write(damaged)

    with caplog.at_level(logging.ERROR):
        assert [geography.place("198.51.100.1") for _ in range(3)] == [Place()] * 3
    assert len(caplog.records) == 1
    assert geography.place("203.0.113.1") == Place("de")


def test_the_sources_are_not_imported_before_they_are_needed(tmp_path):
    script = (
        "import sys; from proxyd.exits.choosing import geography as g;"
        "print(sorted({'iptocc', 'maxminddb'} & set(sys.modules)));"
        "g.open_geography(g.Sources());"
        "print(sorted({'iptocc', 'maxminddb'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=process.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "['iptocc']"]
