"""The pages of the staff: plain files from memory, which use the staff API alone.

A page is one shell, and names its user behind the `#` of its address. A browser does not send that
part, so the log of a web server has no name and no e-mail address of a user.
"""

from collections.abc import Callable
from pathlib import Path

from api import console
from api.routing import pages
from api.routing.pages import REVALIDATE, Page

DOCUMENT_PATH = "/staff/openapi.json"
SHELL_PATHS = ("/staff", "/staff/")
ASSETS = "/staff/assets"
FOLDER = Path(__file__).parent / "files"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    **pages.HEADERS,
    **REVALIDATE,
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Files of the console that the pages share with it.
SHARED = ("lib/dom.js", "app.css", "icon.svg")


def served(describe: Callable[[], bytes]) -> dict[str, Page]:
    """Return the pages, by path.

    Args:
        describe: makes the OpenAPI document, as JSON; called at the first request.
    """
    shell = Page(
        "text/html; charset=utf-8", (FOLDER / "shell.html").read_bytes(), HEADERS, is_packed=True
    )
    table = dict.fromkeys(SHELL_PATHS, shell)
    table[DOCUMENT_PATH] = Page("application/json", describe, HEADERS, is_packed=True)
    for file in (
        *sorted(FOLDER.glob("*.js")),
        FOLDER / "staff.css",
        *(console.FOLDER / name for name in SHARED),
    ):
        kind = console.KINDS[file.suffix]
        table[f"{ASSETS}/{file.name}"] = Page(kind, file.read_bytes(), HEADERS, is_packed=True)
    return table
