"""The console: pages of plain files, served from memory, which use the public API and no more.

Every asset is under a digest of them all, so that a browser may keep it for ever, and imports
between them stay relative; the address of a page is a shell that names the digest. Each asset is
compressed once, at its first request: all of them together would be most of a start's work.
"""

import hashlib
import re
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from api.routing import pages
from api.routing.pages import Page
from api.site.look import PLAIN, Look

FOLDER = Path(__file__).parent / "console"
PREFIX = "/console"
# Destinations of e-mails, referral links and devices; the console's own addresses are below PREFIX.
ENTRIES = ("/login", "/register", "/verify", "/forgot", "/reset", "/device")
ICON = "/favicon.ico"  # browsers ask for it beside pages that name no icon, such as files
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    **pages.HEADERS,
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "camera=(self), geolocation=()",
}
STYLE = "site.css"
FOREVER = "public, max-age=31536000, immutable"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
# The modules that every page imports.
SHARED = tuple(
    f"lib/{name}.js"
    for name in (
        "api",
        "dom",
        "forms",
        "frame",
        "router",
        "site",
        "state",
        "storage",
        "stream",
        "view",
        "words",
    )
)
DIGEST_CHARACTERS = 16
_DIGEST = re.compile(rf"{PREFIX}/[0-9a-f]{{{DIGEST_CHARACTERS}}}(/|$)")


class Console:
    """The pages of the console, by path.

    Args:
        folder: where its files are.
        look: the name, the logo and the colours of the service.
    """

    def __init__(self, folder: Path = FOLDER, look: Look = PLAIN) -> None:
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in KINDS
        }
        if look.style:
            files[STYLE] = look.style
        shell = (folder / "shell.html").read_text()
        parts = _parts(look)
        self.digest = _digest(
            [*files.items(), ("shell.html", shell.encode()), ("look", repr(parts).encode())]
        )
        base = f"{PREFIX}/{self.digest}/"
        self._shell = _page(
            "text/html; charset=utf-8", _filled(shell, base, files, parts), "no-cache"
        )
        self._files = {base + name: body for name, body in files.items()}
        icon = files.get("icon.svg", b"")
        self._icon = _page(KINDS[".svg"], icon, pages.CACHE)
        self._assets: dict[str, Page] = {}  # requested so far

    def page(self, path: str) -> Page | None:
        """Return the page at a path; None for a path outside the console.

        Every address below the console's is a page, since the browser resolves it; an asset of
        another version has none.
        """
        if path in ENTRIES or path == PREFIX:
            return self._shell
        if path == ICON:
            return self._icon
        if not path.startswith(f"{PREFIX}/"):
            return None
        if path in self._files:
            return self._asset(path)
        return None if _DIGEST.match(path) else self._shell

    def _asset(self, path: str) -> Page:
        asset = self._assets.get(path)
        if asset is None:
            asset = _page(KINDS[Path(path).suffix], self._files[path], FOREVER)
            self._assets[path] = asset
        return asset


@cache
def packaged(look: Look = PLAIN) -> Console:
    """Return the console of this program: a process reads and hashes its files once."""
    return Console(look=look)


def _digest(files: list[tuple[str, bytes]]) -> str:
    made = hashlib.sha256()
    for name, body in files:
        made.update(b"%s\0%d\0%s" % (name.encode(), len(body), body))
    return made.hexdigest()[:DIGEST_CHARACTERS]


def _parts(look: Look) -> dict[str, str]:
    """Return the parts of the shell that depend on the look of the service."""
    logo = "" if look.logo is None else look.logo.url
    return {"name": escape(look.name), "logo": logo}


def _filled(shell: str, base: str, files: dict[str, bytes], parts: dict[str, str]) -> bytes:
    """Return the shell of this version, with the files that every page needs as preloads."""
    preloads = "\n".join(
        f'<link rel="modulepreload" href="{base}{name}">' for name in SHARED if name in files
    )
    style = f'<link rel="stylesheet" href="{base}{STYLE}">' if STYLE in files else ""
    filled = Template(shell).substitute(base=base, preloads=preloads, style=style, **parts)
    return filled.encode()


def _page(kind: str, body: bytes, cache: str) -> Page:
    return Page(kind, body, {**HEADERS, "Cache-Control": cache}, is_packed=True)
