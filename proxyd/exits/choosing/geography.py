"""Places of addresses: the country, and city and network if the operator has files of them.

Theory of operation
-------------------
A country is sold, so a wrong one is worse than none: every source that knows an address has to say
the same country, or it is unknown. Asked are

* the networks that the operator knows (`[geo] known`), whose word is final, the narrowest first;
* otherwise the files that the operator names (`[geo] country`, `[geo] city`);
* otherwise built-in sources: the package `iptocc`, which has the countries that networks are
  registered in, and Debian's `tor-geoipdb`, where it is installed, with where they are used.

City and state come from the file of cities alone, and only while its country is the one that was
found. Names are spelled as buyers write them: `sao_paulo`.

Sources are read once, at the start and beside the event loop (`open_geography`): that takes a
second. Asking one takes some microseconds.
"""

import logging
import re
import socket
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Network,
    ip_address,
    ip_network,
)
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from unicodedata import normalize

from config.load import SettingsError
from config.settings import Settings
from market.base.networks import Address, plain
from market.exits.wants import COUNTRIES, KINDS, PLACE_MAX_CHARACTERS
from proxyd.exits.choosing.entries import Place

if TYPE_CHECKING:
    from maxminddb import Reader

# Debian's package of them; Tor itself need not be installed.
DEBIAN_FILES: Final = (Path("/usr/share/tor/geoip"), Path("/usr/share/tor/geoip6"))
# Number of records that are looked at before a file is taken for a file of something else: the
# first ones are often of unused networks.
RECORDS_SEEN: Final = 10_000
SUBSCRIBER_BITS: Final = 64

REGISTRIES: Final = (
    "Countries: the registries' delegation statistics (AFRINIC, APNIC, ARIN, LACNIC, RIPE NCC)"
)
DEBIAN: Final = "Countries: the IPFire Project, location.ipfire.org, CC BY-SA 4.0"
# Texts that the licences of well-known files require, by the beginning of the file's type.
ATTRIBUTIONS: Final = {
    "DBIP": "IP Geolocation by DB-IP, https://db-ip.com",
    "GeoLite2": "This product includes GeoLite Data created by MaxMind, https://www.maxmind.com",
    "ipinfo": "IP address data is powered by IPinfo, https://ipinfo.io",
}

# Where files have it: files of MaxMind and of providers with the same structure, and flat files.
_COUNTRY: Final = (("country", "iso_code"), ("country_code",), ("country",))
_CITY: Final = (("city", "names", "en"), ("city",))
_STATE: Final = (("subdivisions", 0, "names", "en"), ("state1",), ("region",), ("state",))
_ASN: Final = (("autonomous_system_number",), ("asn",))
_KIND: Final = (("traits", "user_type"), ("user_type",), ("connection_type",), ("type",))
_KIND_OF_WORD: Final = {
    **{kind: kind for kind in KINDS},
    "isp": "residential",
    "cable/dsl": "residential",
    "cellular": "mobile",
    "hosting": "datacenter",
}
_GAP: Final = re.compile(r"[\s/-]+")
_UNSPELLABLE: Final = re.compile(r"[^a-z0-9_.]")

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class Sources:
    """Files and facts about addresses; empty fields are unknown.

    `country`, `city` and `asn` are `.mmdb` files, `known` are countries by network, and `debian`
    are the files of Debian's package, for IPv4 and IPv6, which need not be there.
    """

    country: str = ""
    city: str = ""
    asn: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    debian: tuple[Path, Path] = DEBIAN_FILES


class Countries(Protocol):
    """A source of countries; `name` distinguishes it from the others."""

    @property
    def name(self) -> str:
        """Name of the source."""

    def country(self, address: Address) -> str:
        """Return an address's country, two small letters; empty when it is not known."""


class Geography:
    """Look-up of the places of addresses; see the theory above.

    `attribution` is the text that its answers must be shown with.

    Args:
        countries: the sources that have to agree.
    """

    def __init__(
        self,
        known: "Known",
        countries: Iterable[Countries],
        city: "Records | None",
        asn: "Records | None",
        attribution: Iterable[str],
    ) -> None:
        self.attribution = tuple(dict.fromkeys(attribution))
        self._known = known
        self._countries = tuple(countries)
        self._city = city
        self._asn = asn

    def place(self, address: str) -> Place:
        """Return the place of an address; unknown fields are empty."""
        try:
            parsed = plain(ip_address(address.partition("%")[0]))
        except ValueError:
            return Place()
        city = self._city.of(parsed) if self._city else {}
        asn = self._asn.of(parsed) if self._asn else {}
        country = self._known.country(parsed) or self._agreed(parsed)
        is_there = bool(country) and _country(city) == country
        return Place(
            country,
            _spelled(_first(city, _STATE)) if is_there else "",
            _spelled(_first(city, _CITY)) if is_there else "",
            _number(_first(asn, _ASN)),
            _kind(asn) or _kind(city),
        )

    def opinions(self, address: str) -> dict[str, str]:
        """Return the country that each source names for an address; "" where it knows none."""
        try:
            parsed = plain(ip_address(address.partition("%")[0]))
        except ValueError:
            return {}
        sources: tuple[Countries, ...] = (self._known, *self._countries)
        opinions = {source.name: source.country(parsed) for source in sources}
        if not opinions[self._known.name]:  # most operators know no networks
            del opinions[self._known.name]
        return opinions

    def close(self) -> None:
        """Close the files; twice is harmless."""
        for records in (self._city, self._asn, *self._countries):
            if isinstance(records, Records):
                records.close()

    def _agreed(self, address: Address) -> str:
        countries = {source.country(address) for source in self._countries} - {""}
        return countries.pop() if len(countries) == 1 else ""


def open_geography(sources: Sources) -> Geography:
    """Read the files about addresses; this takes a second, so never on an event loop.

    Raises:
        SettingsError: a file is missing, is damaged, or has other records than its setting needs; a
            known network is not valid.
    """
    problems: list[str] = []
    with ExitStack() as stack:
        files = _files(sources, stack, problems)
        known = Known(sources.known, problems)
        named = [each for each in (files["geo.country"], files["geo.city"]) if each is not None]
        countries: list[Countries] = [*named] or [*_packaged(sources.debian, problems)]
        if problems:
            raise SettingsError(problems)
        stack.pop_all()
    attribution = [each.attribution for each in files.values() if each is not None]
    if not named:
        attribution += [REGISTRIES] + [DEBIAN] * (len(countries) - 1)
    return Geography(known, countries, files["geo.city"], files["geo.asn"], attribution)


def geography_problems(settings: Settings) -> Iterator[str]:
    """Yield one line for each mistake in the named files, where the settings allow exits."""
    geo = settings.geo
    problems: list[str] = []
    with ExitStack() as stack:
        if settings.exits.host:
            _files(Sources(geo.country, geo.city, geo.asn), stack, problems)
    yield from problems


def _files(sources: Sources, stack: ExitStack, problems: list[str]) -> dict[str, "Records | None"]:
    """Open the named files until the stack closes; `problems` gets a line for each mistake."""
    files: dict[str, Records | None] = {}
    for name, path, fields in (
        ("geo.country", sources.country, _COUNTRY),
        ("geo.city", sources.city, _CITY),
        ("geo.asn", sources.asn, _ASN),
    ):
        files[name] = None
        try:
            if path:
                files[name] = records = Records(name, path, fields)
                stack.callback(records.close)
        except SettingsError as error:
            problems += error.problems
    return files


class Known:
    """Countries of networks that an operator knows.

    Args:
        problems: gets a line for each network that is not valid.
    """

    name = "known"

    def __init__(self, networks: Mapping[str, str], problems: list[str]) -> None:
        countries: list[tuple[IPv4Network | IPv6Network, str]] = []
        for text, country in networks.items():
            try:
                countries.append((ip_network(text), country.lower()))
            except ValueError as error:
                problems.append(f"geo.known: {error}")
            if country.lower() not in COUNTRIES:
                problems.append(f"geo.known: {country!r} is no country's code, for {text}")
        self._countries = sorted(countries, key=lambda each: each[0].prefixlen, reverse=True)

    def country(self, address: Address) -> str:
        """See `Countries.country`."""
        return next((country for network, country in self._countries if address in network), "")


class Registries:
    """The country that an address's network is registered in."""

    name = "registries"

    def __init__(self) -> None:
        # Neither daemons without exits nor those with files of their own need it.
        from iptocc import country_code  # noqa: PLC0415

        self._country_code = country_code

    def country(self, address: Address) -> str:
        """See `Countries.country`."""
        return _code(self._country_code(str(address)))


class Ranges:
    """The country of an address by Debian's files: a line for each range of addresses.

    Of IPv6 the first 64 bits are kept: the holder of a smaller network is no subscriber.

    Args:
        ipv4: the file of IPv4 addresses, as numbers.
        ipv6: the file of IPv6 addresses.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged.
    """

    name = "ipfire"

    def __init__(self, ipv4: Path, ipv6: Path) -> None:
        self._ipv4 = _Table("I", _ranges(ipv4, _ipv4_range))
        self._ipv6 = _Table("Q", _ranges(ipv6, _ipv6_range))

    def country(self, address: Address) -> str:
        """See `Countries.country`."""
        if isinstance(address, IPv4Address):
            return self._ipv4.country(int(address))
        return self._ipv6.country(int(address) >> SUBSCRIBER_BITS)


class _Table:
    """Countries of ranges, which do not overlap.

    Raises:
        ValueError: they are not in order.
    """

    def __init__(self, kind: str, rows: Iterable[tuple[int, int, str]]) -> None:
        self._starts = array(kind)
        self._ends = array(kind)
        self._countries: list[str] = []
        codes: dict[str, str] = {}  # one text for all ranges of a country
        before = -1
        for start, end, code in rows:
            if not before < start <= end:
                raise ValueError(f"its ranges are not in order at {start}")
            before = end
            self._starts.append(start)
            self._ends.append(end)
            self._countries.append(codes.setdefault(code, _code(code)))

    def country(self, number: int) -> str:
        at = bisect_right(self._starts, number) - 1
        return self._countries[at] if at >= 0 and number <= self._ends[at] else ""


class Records:
    """A file of records by network, in MaxMind's format (`.mmdb`).

    The file is mapped, not read: to replace it, an operator renames a new one over it, and
    restarts.

    Args:
        setting: the setting with its path.
        fields: the paths of the wanted value in a record.

    Raises:
        SettingsError: it is not there, is damaged, or is a file of something else.
    """

    def __init__(self, setting: str, path: str, fields: tuple[tuple[str | int, ...], ...]) -> None:
        from maxminddb import InvalidDatabaseError, open_database  # noqa: PLC0415 - as above

        self.name = setting.removeprefix("geo.") + "_file"
        self._damaged = InvalidDatabaseError
        self._path = path
        self._is_reported = False
        try:
            self._reader: Reader = open_database(path)
        except (OSError, InvalidDatabaseError, ValueError) as error:
            raise SettingsError([f"{setting}: {path} cannot be read: {_reason(error)}"]) from None
        try:
            records = (record for _, record in islice(self._reader, RECORDS_SEEN))
            is_right = any(isinstance(each, dict) and _first(each, fields) for each in records)
        except (InvalidDatabaseError, ValueError) as error:
            self._reader.close()
            raise SettingsError([f"{setting}: {path} is damaged: {error}"]) from None
        metadata = self._reader.metadata()
        kind = metadata.database_type
        if not is_right:
            self._reader.close()
            what = f"{path} names no {fields[0][0]}: it is a file of something else ({kind})"
            raise SettingsError([f"{setting}: {what}"])
        words = [text for prefix, text in ATTRIBUTIONS.items() if kind.startswith(prefix)]
        self.attribution = words[0] if words else metadata.description.get("en", kind)

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self._reader.close()

    def country(self, address: Address) -> str:
        """See `Countries.country`."""
        return _country(self.of(address))

    def of(self, address: Address) -> Mapping[str, Any]:
        """Return the record of an address; empty if the file has none."""
        try:
            record = self._reader.get(address)
        except ValueError:  # the address is of IPv6, and the file is of IPv4
            return {}
        except self._damaged as error:
            if not self._is_reported:
                self._is_reported = True
                _logger.error("%s is damaged, places are not known: %s", self._path, error)
            return {}
        return record if isinstance(record, dict) else {}


def _packaged(debian: tuple[Path, Path], problems: list[str]) -> Iterator[Countries]:
    """Yield the packaged sources; `problems` gets a line for each damaged one."""
    yield Registries()
    if all(each.exists() for each in debian):
        try:
            yield Ranges(*debian)
        except (OSError, ValueError) as error:
            problems.append(
                f"{debian[0].parent}: its files of countries cannot be read: {_reason(error)}; "
                "install the package tor-geoipdb anew, or name a file in geo.country"
            )


def _ranges(
    path: Path, read: Callable[[bytes, bytes], tuple[int, int] | None]
) -> Iterator[tuple[int, int, str]]:
    """Yield first, last and country of each line; comments begin with `#`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is something else.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.startswith(b"#"):
                continue
            try:
                first, last, code = line.split(b",")
                both = read(first, last)
            except (ValueError, OSError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if both is not None:
                yield *both, code.strip().decode("ascii", "replace")


def _ipv4_range(first: bytes, last: bytes) -> tuple[int, int]:
    start, end = int(first), int(last)
    if end >= 2**32:
        raise ValueError(f"{end} is no IPv4 address")
    return start, end


def _ipv6_range(first: bytes, last: bytes) -> tuple[int, int] | None:
    """Return the first 64 bits of both; None when it is less than that."""
    # Ten times as fast as `IPv6Address`, and there are half a million of them.
    start = int.from_bytes(socket.inet_pton(socket.AF_INET6, first.decode()))
    end = int.from_bytes(socket.inet_pton(socket.AF_INET6, last.decode()))
    rest = (1 << SUBSCRIBER_BITS) - 1
    if start & rest or ~end & rest:
        return None
    return start >> SUBSCRIBER_BITS, end >> SUBSCRIBER_BITS


def _first(record: Mapping[str, Any], fields: tuple[tuple[str | int, ...], ...]) -> str | int:
    """Return the first of some fields that a record has as a text or a number; else empty."""
    for keys in fields:
        value: object = record
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int):
                value = value[key] if key < len(value) else None
            else:
                value = None
        if value and isinstance(value, str | int):
            return value
    return ""


def _country(record: Mapping[str, Any]) -> str:
    return _code(_first(record, _COUNTRY))


def _code(value: object) -> str:
    """Return a country's code in small letters; empty if the value is no country's."""
    code = str(value).lower() if value else ""
    return code if code in COUNTRIES else ""


def _kind(record: Mapping[str, Any]) -> str:
    return _KIND_OF_WORD.get(str(_first(record, _KIND)).lower(), "")


def _number(value: object) -> int:
    """Return the number of a network, which may be written as AS3320."""
    digits = str(value).lower().removeprefix("as")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _spelled(value: object) -> str:
    """Return a name as buyers write it: small letters without marks, `_` between words."""
    plain_letters = normalize("NFKD", str(value)).encode("ascii", "ignore").decode().lower()
    joined = _GAP.sub("_", plain_letters.strip())
    return _UNSPELLABLE.sub("", joined)[:PLACE_MAX_CHARACTERS]


def _reason(error: Exception) -> str:
    """Return the cause of an error, without the path, which the message has anyway."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
