"""The look of the service: its name, its logo and its colours."""

import hashlib
from functools import cached_property

from msgspec import Struct

from api.routing import pages
from api.routing.pages import Page
from market.site.gate import DEFAULT_NAME

LOGO_PATH = "/site/logo"
LOGO_CACHE = "public, max-age=86400"
# A logo that is opened as a page of its own can do nothing.
LOGO_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
LIGHT_COLOUR, DARK_COLOUR = "#0b5cad", "#7bb8f5"  # `--brand` of `app.css`


class Logo(Struct, frozen=True, dict=True):
    """A logo that was checked: its type, and its bytes."""

    content_type: str
    body: bytes

    @cached_property
    def digest(self) -> str:
        """A hash of the bytes."""
        return hashlib.sha256(self.body).hexdigest()[:16]

    @property
    def url(self) -> str:
        """The logo's address, which changes with the logo."""
        return f"{LOGO_PATH}?{self.digest}"

    def page(self) -> Page:
        """Return the logo as a page."""
        headers = {
            **pages.HEADERS,
            "Cache-Control": LOGO_CACHE,
            "Content-Security-Policy": LOGO_POLICY,
        }
        return Page(self.content_type, self.body, headers)


class Look(Struct, frozen=True):
    """The name of the service, its logo, and its colours on light and on dark ground."""

    name: str = DEFAULT_NAME
    logo: Logo | None = None
    colour: str = ""
    dark_colour: str = ""

    @property
    def style(self) -> bytes:
        """The style sheet of the colours; b"" for those of the program."""
        if not self.colour and not self.dark_colour:
            return b""
        light, dark = self.colour or LIGHT_COLOUR, self.dark_colour or DARK_COLOUR
        return f":root {{ --brand: light-dark({light}, {dark}) }}\n".encode()


PLAIN = Look()
