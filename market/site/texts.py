"""Published texts as visitors read them: the valid version, the next one, and their bodies."""

import asyncio

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.site import texts as queries
from storage.site.texts import TextRow

KINDS = ("terms", "privacy", "imprint")
LOOK_SECONDS = 10  # the age of the versions that a page shows
BODIES_MAX = 32  # of at most 800 kB; a version never changes
DEFAULT_LOCALE = "en"
LANGUAGES_MAX = 20  # of a request; browsers send fewer than ten


class Version(Struct, frozen=True):
    """A version of a text: its languages, and whether it is valid."""

    kind: str
    version: int
    locales: tuple[str, ...]
    valid_from: int
    is_valid: bool

    def locale(self, wanted: str) -> str:
        """Return the language to show to a reader with an Accept-Language."""
        parts = wanted.split(",", LANGUAGES_MAX)[:LANGUAGES_MAX]
        asked = [each.partition(";")[0].strip().lower() for each in parts]
        for language in asked:
            for locale in self.locales:
                if language in (locale.lower(), locale[:2].lower()):
                    return locale
                if language[:2] == locale[:2]:
                    return locale
        return DEFAULT_LOCALE if DEFAULT_LOCALE in self.locales else self.locales[0]


class Texts:
    """Reads published texts, and keeps them for `LOOK_SECONDS`."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._now = context.now
        self._looked_at = -LOOK_SECONDS
        self._looking = asyncio.Lock()  # one visitor reads, and the others wait for the versions
        self._versions: tuple[Version, ...] = ()
        self._bodies: dict[tuple[str, int, str], str] = {}

    async def versions(self) -> tuple[Version, ...]:
        """Return of each kind the valid version, and a later one that is not valid yet.

        Without the database they are as they were at the last look.

        Raises:
            StoreError: the database cannot be read, and could not since the start.
        """
        if self._is_new():
            return self._versions
        async with self._looking:
            if not self._is_new():
                now = self._now()
                try:
                    self._versions = tuple(await self._store.read(_versions, now))
                except UnavailableError:
                    if self._looked_at < 0:
                        raise
                self._looked_at = now
            return self._versions

    def _is_new(self) -> bool:
        return 0 <= self._now() - self._looked_at < LOOK_SECONDS

    async def find(self, kind: str, version: int | None) -> Version:
        """Return a version of a text; None is the valid one.

        Raises:
            MarketError: `text_not_found`.
            StoreError: the database cannot be read.
        """
        if version is None:
            for each in await self.versions():
                if each.kind == kind and each.is_valid:
                    return each
            raise MarketError(Code.TEXT_NOT_FOUND)
        rows = await self._store.read(queries.languages, kind, version)
        if not rows:
            raise MarketError(Code.TEXT_NOT_FOUND)
        return _version(rows, is_valid=rows[0].valid_from <= self._now())

    async def body(self, version: Version, locale: str) -> str:
        """Return the body of a version in one of its languages.

        Raises:
            MarketError: `text_not_found`.
            StoreError: the database cannot be read.
        """
        key = (version.kind, version.version, locale)
        if key not in self._bodies:
            body = await self._store.read(queries.body, *key)
            if body is None:
                raise MarketError(Code.TEXT_NOT_FOUND)
            if len(self._bodies) >= BODIES_MAX:
                self._bodies.clear()
            self._bodies[key] = body
        return self._bodies[key]


async def _versions(tx: Transaction, now: int) -> list[Version]:
    found = []
    for kind in KINDS:
        valid = await queries.valid(tx, kind, now)
        if valid is not None:
            rows = await queries.languages(tx, kind, valid.version)
            found.append(_version(rows, is_valid=True))
        newest = await queries.newest(tx, kind)
        if newest and (valid is None or newest[0].version != valid.version):
            found.append(_version(newest, is_valid=False))
    return found


def _version(rows: list[TextRow], *, is_valid: bool) -> Version:
    row, locales = rows[0], tuple(each.locale for each in rows)
    return Version(row.kind, row.version, locales, row.valid_from, is_valid)
