"""Public pages without scripts: terms of use, privacy policy, imprint, and the status."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from api.http.errors import Transport, TransportError
from api.routing import pages
from api.routing.pages import Page
from api.site.look import LOGO_PATH, Look
from api.site.markup import as_html
from market.base.errors import MarketError
from market.site.gate import SiteTerms
from market.site.status import FAILING, OFF, WORKING, Status, StatusReport
from market.site.texts import KINDS, Texts, Version

STATUS_PATH = "/status"
NAMES = {
    "api": "API and console",
    "proxy": "Proxy",
    "exits": "Exits",
    "jobs": "Jobs",
    "mail": "E-mail",
    "database": "Database",
}
CLASSES = {WORKING: "good", FAILING: "bad"}
STYLE_PATH = "/site/page.css"
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
CACHE = "public, max-age=5"
HEADERS = {**pages.HEADERS, "Cache-Control": CACHE, "Content-Security-Policy": POLICY}
TITLES = {"terms": "Terms of use", "privacy": "Privacy policy", "imprint": "Imprint"}
VERSION_MAX_DIGITS = 9
KEPT_MAX = 32

STYLE = """
:root { color-scheme: light dark; font: 1rem/1.6 system-ui, sans-serif;
  --brand: light-dark(#0b5cad, #7bb8f5); --line: light-dark(#d5dae1, #363d47) }
body { margin: 0 auto; max-width: 46rem; padding: 1.5rem; overflow-wrap: break-word;
  background: light-dark(#ffffff, #14171b); color: light-dark(#1a1f26, #e8ebef) }
a { color: var(--brand) }
header a { font-weight: 700; font-size: 1.15rem; text-decoration: none; color: inherit }
header img { height: 1.6rem; vertical-align: middle; margin-right: .5rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
footer, .hint { color: light-dark(#545d69, #a9b3bf); font-size: .9rem }
footer { margin-top: 2rem }
footer a { margin-right: 1rem }
.good { color: light-dark(#1a6b33, #7fd397) }
.bad { color: light-dark(#a4161a, #ff9d97) }
"""

_HTML = """<!DOCTYPE html>
<html lang="{locale}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} &ndash; {name}</title>
<link rel="stylesheet" href="{style}">
</head>
<body>
<header><a href="/">{logo}{name}</a></header>
<main>
{main}
</main>
<footer>{links}</footer>
</body>
</html>
"""

Make = Callable[[Mapping[str, str], str], Awaitable[Page]]


class _Kept(NamedTuple):
    """A text as HTML, and its page, which names the versions that were published then."""

    versions: tuple[Version, ...]
    html: str
    page: Page


class PublicPages:
    """The public pages, by path.

    Args:
        terms: the name and the contact of the service.
        look: its look.
        texts: the published texts.
        status: the status of the service.
    """

    def __init__(self, terms: SiteTerms, look: Look, texts: Texts, status: Status) -> None:
        self._status = status
        self._shown: tuple[StatusReport, Page] | None = None
        self._terms = terms
        self._look = look
        self._texts = texts
        self._kept: dict[tuple[str, int, str], _Kept] = {}
        style = Page("text/css; charset=utf-8", STYLE.encode() + look.style, HEADERS)
        self._makers: dict[str, Make] = {STYLE_PATH: _always(style), STATUS_PATH: self._state}
        if look.logo is not None:
            self._makers[LOGO_PATH] = _always(look.logo.page())
        for kind in KINDS:
            self._makers[f"/{kind}"] = self._maker(kind)

    def find(self, path: str) -> Make | None:
        """Return the function that makes the page at a path; None for another path."""
        return self._makers.get(path)

    def _maker(self, kind: str) -> Make:
        async def make(query: Mapping[str, str], languages: str) -> Page:
            try:
                version = await self._texts.find(kind, _number(query.get("version")))
                locale = version.locale(query.get("lang") or languages)
                return await self._text(version, locale)
            except MarketError:
                raise TransportError(Transport.NO_SUCH_PATH) from None

        return make

    async def _state(self, _query: Mapping[str, str], _languages: str) -> Page:
        """Return the page of the status; it is made again with each report."""
        report = await self._status.report()
        if self._shown is None or self._shown[0] is not report:
            self._shown = (report, await self.page("Status", _status(report)))
        return self._shown[1]

    async def _text(self, version: Version, locale: str) -> Page:
        """Return a text as a page; it is made again when other versions are published."""
        key, versions = (version.kind, version.version, locale), await self._texts.versions()
        kept = self._kept.get(key)
        if kept is None or kept.versions is not versions:
            body = await self._texts.body(version, locale)
            html = kept.html if kept is not None else await asyncio.to_thread(as_html, body)
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = _Kept(versions, html, await self._framed(version, locale, html))
            self._kept[key] = kept
        return kept.page

    async def _framed(self, version: Version, locale: str, html: str) -> Page:
        day = datetime.fromtimestamp(version.valid_from, UTC).date().isoformat()
        others = " ".join(
            f'<a href="?version={version.version}&amp;lang={each}" lang="{each}">{each}</a>'
            for each in version.locales
            if each != locale
        )
        head = f'<p class="hint">Version {version.version}, valid from {day}. {others}</p>'
        return await self.page(TITLES[version.kind], f"{head}\n{html}", locale)

    async def page(self, title: str, main: str, locale: str = "en") -> Page:
        """Return a page in the look of the service.

        Args:
            title: its title.
            main: its HTML.
            locale: its language.
        """
        name, logo = escape(self._look.name), self._look.logo
        body = _HTML.format(
            locale=locale,
            title=title,
            name=name,
            style=STYLE_PATH,
            logo="" if logo is None else f'<img src="{logo.url}" alt="">',
            main=main,
            links=" ".join(await self._links()),
        )
        return Page(
            "text/html; charset=utf-8",
            body.encode(),
            HEADERS,
            is_packed=True,
            varies="Accept-Language",
        )

    async def _links(self) -> list[str]:
        links = [
            f'<a href="/{each.kind}">{TITLES[each.kind]}</a>'
            for each in await self._texts.versions()
            if each.is_valid
        ]
        links.append(f'<a href="{STATUS_PATH}">Status</a>')
        support = self._terms.support
        if support:
            url = support if "://" in support else f"mailto:{support}"
            links.append(f'<a href="{escape(url)}">Help</a>')
        return links


def _status(report: StatusReport) -> str:
    """Return the status as HTML."""
    rows = "\n".join(
        f"<tr><td>{NAMES[each.name]}</td><td class={CLASSES.get(each.state, 'hint')}>{each.state}"
        f"</td><td>{_percent(each.day)}</td><td>{_percent(each.ninety_days)}</td></tr>"
        for each in report.components
        if each.state != OFF
    )
    notices = "\n".join(
        f"<h2>{escape(each.title)}</h2>\n<p class=hint>{each.severity}, {_moment(each.began_at)}"
        f"{'' if each.ended_at is None else f' to {_moment(each.ended_at)}'}</p>\n"
        f"<p>{escape(each.body).replace(chr(10), '<br>')}</p>"
        for each in report.notices
    )
    seen = f"Seen at {_moment(report.at)}." if report.at else "Not seen yet."
    return (
        f"<h1>Status</h1>\n{notices}\n<table>\n"
        "<tr><th>Part</th><th>Now</th><th>24 hours</th><th>90 days</th></tr>\n"
        f"{rows}\n</table>\n<p class=hint>{seen}</p>"
    )


def _percent(share: float | None) -> str:
    """Return a share of time, rounded down: 100 % means always."""
    return "&ndash;" if share is None else f"{math.floor(share * 10_000) / 100:.2f} %"


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _always(page: Page) -> Make:
    async def make(_query: Mapping[str, str], _languages: str) -> Page:
        return page

    return make


def _number(text: str | None) -> int | None:
    """Return the version in a query.

    Raises:
        TransportError: the text is no version.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= VERSION_MAX_DIGITS):
        raise TransportError(Transport.NO_SUCH_PATH)
    return int(text)
