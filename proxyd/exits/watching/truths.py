"""Truths: the answers of pages, as they are fetched from here.

The theory of operation is in `canaries.py`.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Final, final

from proxyd.egress.candidates import candidates
from proxyd.exits.dialling.errand import Ways
from proxyd.exits.watching.fetch import Answer, CutError, JunkError, Page, fetch

PAGES_PER_ROUND: Final = 3
SPLIT_LEAST: Final = 2 * PAGES_PER_ROUND  # with fewer pages each round takes any of them
TRUTH_FETCH_SECONDS: Final = 10.0  # of a page, from here
TRUTH_SECONDS: Final = 3_600.0
TRUTH_AGAIN_SECONDS = 30.0  # while a page has none

_logger = logging.getLogger("exits")


@final
class Truths:
    """The answers of the pages that an operator has named.

    `is_ready` is set once every page was tried.

    Args:
        twice_seconds: between the two fetches of a page.
    """

    __slots__ = (
        "_first",
        "_known",
        "_later",
        "_pages",
        "_reported",
        "_twice_seconds",
        "_ways",
        "is_ready",
    )

    def __init__(self, ways: Ways, pages: Sequence[Page], twice_seconds: float) -> None:
        self._ways = ways
        self._pages = tuple(pages)
        self._first, self._later = halves(self._pages)
        self._twice_seconds = twice_seconds
        self._known: dict[Page, Answer] = {}
        self._reported: set[Page] = set()  # pages that are no canaries, as the log has them
        self.is_ready = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of pages with a known answer."""
        return len(self._known)

    @property
    def has_pages(self) -> bool:
        """Whether the operator has named any pages."""
        return bool(self._pages)

    def pages(self, *, is_first: bool) -> list[Page]:
        """Return the pages with a known answer, of first rounds or of later ones."""
        half = self._first if is_first else self._later
        return [page for page in half if page in self._known]

    def get(self, page: Page) -> Answer | None:
        """Return the known answer of a page; None if it is no canary any more."""
        return self._known.get(page)

    async def learn(self) -> None:
        """Fetch every page directly, twice, periodically."""
        while True:
            await asyncio.gather(*(self._learn(page) for page in self._pages))
            if not self._known:
                _logger.warning("no canary can be fetched: exits are not checked")
            self.is_ready.set()
            is_whole = len(self._known) == len(self._pages)
            await asyncio.sleep(TRUTH_SECONDS if is_whole else TRUTH_AGAIN_SECONDS)

    async def fetch(self, page: Page) -> Answer | None:
        """Fetch a page from here; None when it does not come."""
        try:
            async with asyncio.timeout(TRUTH_FETCH_SECONDS):
                return await fetch(await self._connect(page), page)
        except (OSError, JunkError, CutError) as error:  # a timeout is an OSError
            _logger.debug("canary %s: %s", page.url, error)
            return None

    async def _learn(self, page: Page) -> None:
        first = await self.fetch(page)
        await asyncio.sleep(self._twice_seconds)
        second = await self.fetch(page)
        if first is not None and first == second:
            if self._known.get(page) != first:
                _logger.info("canary %s: %s", page.url, first)
            self._known[page] = first
            self._reported.discard(page)
            return
        self._known.pop(page, None)
        if page not in self._reported:
            self._reported.add(page)
            is_there = first is not None and second is not None
            words = "differs from one fetch to the next" if is_there else "cannot be fetched"
            _logger.warning("canary %s: %s: it is not used", page.url, words)

    async def _connect(self, page: Page) -> socket.socket:
        """Return a connection to a page from here.

        Raises:
            OSError: no address of the page can be reached.
        """
        ways = self._ways
        permitted = candidates(await ways.addresses(page.host), page.port, ways.policy)
        if not permitted:
            raise OSError("exits must not dial it")
        for at, address in enumerate(permitted, 1):
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                await ways.reactor.loop.sock_connect(sock, (str(address), page.port))
            except OSError:
                sock.close()
                if at == len(permitted):
                    raise
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise OSError("it has no address")


def halves(pages: tuple[Page, ...]) -> tuple[tuple[Page, ...], tuple[Page, ...]]:
    """Return the pages of first rounds and those of later ones.

    Each half has pages with and without TLS, if there are two of each. The halves stay the same
    over restarts, as long as pages are added at the end.
    """
    if len(pages) < SPLIT_LEAST:
        return pages, pages
    plain = tuple(page for page in pages if not page.is_tls)
    secure = tuple(page for page in pages if page.is_tls)
    return plain[::2] + secure[::2], plain[1::2] + secure[1::2]
