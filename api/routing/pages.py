"""Pages beside the routes: the document of the API, and a page to try it on, also offline."""

import gzip
import importlib.util
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

DESCRIPTION_PATH = "/openapi.json"
PAGE_PATH = "/docs"
PACKAGE = "swagger_ui"
CACHE = "public, max-age=86400"

# Headers of every page of this origin, also of the console's.
HEADERS = {
    "Referrer-Policy": "no-referrer",  # an address may hold a secret
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Swagger UI sets styles on its elements; everything else comes only from this server.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REVALIDATE = {"Cache-Control": "no-cache"}

_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>proxyd</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#page",
  deepLinking: true,
});
"""


class Page:
    """A page.

    Args:
        body: its bytes, or a function that makes them at the first request.
        is_packed: whether the bytes are compressed for clients that take them so; once, at the
            first request. They hold no secret, so their length says nothing.
        varies: other fields of a request that choose among pages, for caches.
    """

    def __init__(
        self,
        content_type: str,
        body: bytes | Callable[[], bytes],
        headers: dict[str, str],
        *,
        is_packed: bool = False,
        varies: str = "",
    ) -> None:
        self.content_type = content_type
        vary = ", ".join(filter(None, ("Accept-Encoding" if is_packed else "", varies)))
        self.headers = {**headers, "Vary": vary} if vary else headers
        self._is_packed = is_packed
        self._body = body

    @property
    def body(self) -> bytes:
        """Its bytes."""
        if not isinstance(self._body, bytes):
            self._body = self._body()
        return self._body

    @cached_property
    def gzipped(self) -> bytes:
        """Its bytes compressed; b"" where they are not."""
        return gzip.compress(self.body, 9, mtime=0) if self._is_packed else b""


def pages(describe: Callable[[], bytes]) -> dict[str, Page]:
    """Return the pages, by path.

    Args:
        describe: makes the OpenAPI document, as JSON; called at the first request, since it takes
            20 ms that a start need not wait for.
    """
    headers = {**HEADERS, **REVALIDATE, "Content-Security-Policy": POLICY}
    table = {
        DESCRIPTION_PATH: Page(
            "application/json", describe, {**HEADERS, **REVALIDATE}, is_packed=True
        ),
        PAGE_PATH: Page("text/html; charset=utf-8", _HTML.encode(), headers),
        f"{PAGE_PATH}/start.js": Page("text/javascript", _START.encode(), headers),
    }
    folder = _folder()
    for name, content_type in _FILES.items():
        body = (folder / name).read_bytes()
        headers = {**HEADERS, "Cache-Control": CACHE}
        is_text = content_type.startswith("text/")
        table[f"{PAGE_PATH}/{name}"] = Page(content_type, body, headers, is_packed=is_text)
    return table


@lru_cache(1)
def _folder() -> Path:
    """Return the folder of the package's files, without importing its code."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {PACKAGE} is not installed")
    return Path(spec.submodule_search_locations[0]) / "static"
