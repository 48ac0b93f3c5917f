"""Markdown of the operator as HTML that can do nothing: no scripts, no raw HTML, no images."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


def as_html(text: str) -> str:
    """Return Markdown as HTML.

    HTML in the text is shown as it is written. A link leads only to `http:`, `https:`, `mailto:`
    or this service.
    """
    return str(_parser().render(text))


@cache
def _parser() -> "MarkdownIt":
    # Here, so that a start does not wait for it.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table")
    made.disable("image")
    made.validateLink = _is_link  # type: ignore[method-assign] # its way to be restricted
    return made


def _is_link(url: str) -> bool:
    return url.lower().startswith(("https://", "http://", "mailto:", "/", "#"))
