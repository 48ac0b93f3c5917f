"""Checks of the site's settings: texts that users see, and colours that they can read."""

import base64
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from config.settings import Settings

NAME_MAX_CHARACTERS = 40  # fits into the bar above the console on a narrow screen
SUPPORT_MAX_CHARACTERS = 200
RECEIVERS_MAX = 10
SECRET_PREFIX = "whsec_"  # noqa: S105 - how every secret of a webhook begins
SECRET_MIN_BYTES = 24
# WCAG 2.2, success criterion 1.4.3: of text and its ground.
CONTRAST_MIN = 4.5
# Grounds of the console on which the colour is used: `--ground` and `--paper` of `app.css`.
LIGHT_GROUNDS = ("#f6f7f9", "#ffffff")
DARK_GROUNDS = ("#14171b", "#1c2026")
COLOUR = re.compile("#[0-9a-f]{6}")
ADDRESS = re.compile(r"[^@\s,;<>\"]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def site_problems(settings: Settings) -> Iterator[str]:
    """Yield one line for each setting of the site and the alerts that cannot be used."""
    site = settings.site
    if not (
        1 <= len(site.name) <= NAME_MAX_CHARACTERS
        and site.name.isprintable()
        and site.name == site.name.strip()
    ):
        yield (
            f"site.name: expected 1 to {NAME_MAX_CHARACTERS} characters that can be shown, without "
            f"spaces around them, got {site.name!r}"
        )
    if site.support and not (is_address(site.support) or _is_https(site.support)):
        yield (
            "site.support: expected an e-mail address or a page that begins with https://, got "
            f"{site.support!r}"
        )
    for name, colour, grounds in (
        ("site.colour", site.colour, LIGHT_GROUNDS),
        ("site.dark_colour", site.dark_colour, DARK_GROUNDS),
    ):
        yield from _colour(name, colour, grounds)
    yield from _webhook(settings)
    if len(settings.alerts.email) > RECEIVERS_MAX:
        yield f"alerts.email: expected at most {RECEIVERS_MAX} addresses"
    for address in settings.alerts.email:
        if not is_address(address):
            yield f"alerts.email: expected an e-mail address, got {address!r}"


def alert_key(settings: Settings) -> bytes | None:
    """Return the key that signs messages to the webhook of the alerts.

    None for a secret that is not `whsec_` and at least `SECRET_MIN_BYTES` bytes in base64.
    """
    text = settings.alerts.webhook_secret
    if not text.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    return key if len(key) >= SECRET_MIN_BYTES else None


def _webhook(settings: Settings) -> Iterator[str]:
    """Yield a line for the webhook of the alerts; no line has the secret."""
    alerts = settings.alerts
    if not alerts.webhook_url:
        if alerts.webhook_secret:
            yield "alerts.webhook_secret: is set without alerts.webhook_url"
        return
    if not _is_url(alerts.webhook_url, ("https", "http")):
        yield (
            "alerts.webhook_url: expected an address that begins with https:// or http://, got "
            f"{alerts.webhook_url!r}"
        )
    if alert_key(settings) is None:
        yield (
            f"alerts.webhook_secret: expected {SECRET_PREFIX} and {SECRET_MIN_BYTES} bytes or more "
            "in base64"
        )


def is_address(text: str) -> bool:
    """Return whether a text is an e-mail address."""
    is_short = len(text) <= SUPPORT_MAX_CHARACTERS
    return is_short and text.isprintable() and ADDRESS.fullmatch(text) is not None


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _colour(name: str, colour: str, grounds: tuple[str, ...]) -> Iterator[str]:
    if not colour:
        return
    if not COLOUR.fullmatch(colour):
        yield f'{name}: expected a colour such as "#0b5cad", got {colour!r}'
        return
    for ground in grounds:
        found = contrast(colour, ground)
        if found < CONTRAST_MIN:
            yield (
                f"{name}: {colour} has a contrast of {found:.1f} to the ground {ground}; text "
                f"needs {CONTRAST_MIN}"
            )
            return


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    )
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def _is_https(url: str) -> bool:
    return _is_url(url, ("https",))


def _is_url(url: str, schemes: tuple[str, ...]) -> bool:
    if len(url) > SUPPORT_MAX_CHARACTERS or not url.isprintable() or any(c in url for c in ' "<>'):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and "@" not in parts.netloc
