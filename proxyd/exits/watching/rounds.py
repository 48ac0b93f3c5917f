"""Rounds: pages that are fetched through one exit, and compared with their known answers.

The theory of operation is in `canaries.py`.
"""

import asyncio
from random import Random
from typing import Final, final

from market.base.networks import Address
from proxyd.exits.attached.attached import Attached
from proxyd.exits.dialling.errand import Errand, Unknown, Ways
from proxyd.exits.watching.bounds import CanaryBounds
from proxyd.exits.watching.fetch import CutError, JunkError, Page, fetch
from proxyd.exits.watching.findings import TURNED_AWAY_KIND, Finding, TurnedAway, judged
from proxyd.exits.watching.truths import PAGES_PER_ROUND, Truths
from proxyd.wire.hosts import address_of

ALIVE_LOOK_SECONDS: Final = 0.1


@final
class Rounds:
    """Runs rounds.

    Args:
        chance: chooses the pages, where names are looked up, and TLS.
    """

    __slots__ = ("_bounds", "_chance", "_truths", "_ways")

    def __init__(self, ways: Ways, truths: Truths, chance: Random, bounds: CanaryBounds) -> None:
        self._ways = ways
        self._truths = truths
        self._chance = chance
        self._bounds = bounds

    async def run(self, attached: Attached) -> Finding | None:
        """Fetch pages through an exit; return its fault, None if it carries the right bytes.

        Raises:
            Unknown: the round proves nothing.
            TurnedAway: a page would not answer it.
        """
        if not self._truths:
            raise Unknown("no page can be fetched from here")
        known = self._truths.pages(is_first=not attached.is_proven)
        pages = [page for page in known if attached.terms.may_ask(page.port)]
        if not pages:
            raise Unknown("its owner allows no port of a canary")
        silences: list[Finding] = []
        passed, reason = 0, ""
        left = self._chance.sample(pages, min(PAGES_PER_ROUND, len(pages)))
        while left:
            if not attached.is_open:
                raise Unknown("it rests")
            page = left.pop()
            try:
                finding = await self._check(attached, page)
            except Unknown as error:
                reason = str(error)
                continue
            if finding is None:
                passed += 1
            elif finding.is_certain:
                return finding
            else:
                silences.append(finding)
                if len(silences) > 1:
                    await self._require_alive(attached)
                    return silences[-1]
                others = [each for each in pages if each is not page] or [page]
                left.append(self._chance.choice(others))
        if silences or not passed:
            raise Unknown(reason or "one page did not come")
        return None

    async def _check(self, attached: Attached, page: Page) -> Finding | None:
        """Fetch a page through an exit, and compare.

        Raises:
            Unknown: there is nothing to compare.
            TurnedAway: the page would not answer it.
        """
        at_exit = page.is_named and self._chance.random() < 0.5
        finding = await self._compare(attached, page, at_exit=at_exit)
        if finding is None:
            return None
        if self._truths.get(page) != await self._truths.fetch(page):
            raise Unknown(f"{page.url} has changed")
        if finding.kind == TURNED_AWAY_KIND:
            raise TurnedAway(finding.evidence)
        # One silence is a hiccup, also where the name was looked up at the exit.
        is_wrong = at_exit and finding.is_certain
        if is_wrong and await self._compare(attached, page, at_exit=False) is None:
            return Finding("dns", f"name looked up at the exit: {finding.evidence}", True)
        return finding

    async def _compare(self, attached: Attached, page: Page, *, at_exit: bool) -> Finding | None:
        truth = self._truths.get(page)
        if truth is None:
            raise Unknown(f"{page.url} is no canary any more")
        # Some canaries go under TLS: an exit must not be able to recognise buyers by TLS, and be
        # honest only to canaries.
        secure = attached.secure is not None and self._chance.random() < self._bounds.secure_share
        sock = await self._ways.dial(
            attached, _host(page), page.port, dns_at_exit=at_exit, secure=secure
        )
        heard, seconds = asyncio.Event(), self._bounds.fetch_seconds
        fetching = self._ways.reactor.loop.create_task(fetch(sock, page, heard.set))
        errand = Errand(fetching)
        attached.begin(errand)
        try:
            done, _ = await asyncio.wait({fetching}, timeout=seconds)
            if not done and heard.is_set():
                raise Unknown(f"{page.url}: not all of it within {seconds:g} s")
            if not done:
                words = f"{page.url}: no answer within {seconds:g} s"
                return Finding("silence", words, is_certain=False)
            if fetching.cancelled():
                raise Unknown("it was cut")
            answer = fetching.result()
        except JunkError as error:
            return Finding("junk", f"{page.url}: {error}", is_certain=True)
        except CutError as error:
            return Finding("silence", f"{page.url}: {error}", is_certain=False)
        finally:
            attached.end(errand)
            if not fetching.done():
                fetching.cancel()
                await asyncio.wait({fetching})
            sock.close()  # if it was cancelled before it began
        return judged(page, answer, truth)

    async def _require_alive(self, attached: Attached) -> None:
        """Send an exit a ping, and wait for the answer.

        Raises:
            Unknown: it does not: its line is down, or it is gone.
        """
        loop = self._ways.reactor.loop
        asked = loop.time()
        attached.pulse.ping()
        while loop.time() < asked + self._bounds.alive_seconds:
            if attached.is_gone:
                break
            if attached.pulse.heard_at >= asked:  # the loop's clock has milliseconds
                return
            await asyncio.sleep(ALIVE_LOOK_SECONDS)
        raise Unknown("it is not there any more")


def _host(page: Page) -> Address | str:
    return page.host if page.is_named else address_of(page.host)
