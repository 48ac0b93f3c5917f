"""Preference of a client for a media type: the header Accept (RFC 9110, section 12.5.1)."""

TEXT = "text/plain"
HTML = "text/html"
JSON = "application/json"
EVENTS = "text/event-stream"


def prefers_events(accept: str) -> bool:
    """Return whether the client prefers events to JSON; JSON is sent if it prefers neither."""
    return _quality(accept, EVENTS) > _quality(accept, JSON)


def prefers_text(accept: str) -> bool:
    """Return whether the client prefers text to JSON; JSON is sent if it prefers neither."""
    return _quality(accept, TEXT) > _quality(accept, JSON)


def prefers_json(accept: str) -> bool:
    """Return whether the client prefers JSON to a page; for equal preferences it gets the page.

    Of two types with equal weight, the type that the header names explicitly wins.
    """
    return _wish(accept, JSON) > _wish(accept, HTML)


def prefers_page(accept: str) -> bool:
    """Return whether the client prefers a page to JSON; JSON is sent if it prefers neither."""
    return _wish(accept, HTML) > _wish(accept, JSON)


def _quality(accept: str, kind: str) -> float:
    """Return the weight of a type, from 0 to 1; the most specific range decides."""
    return _wish(accept, kind)[0]


def _wish(accept: str, kind: str) -> tuple[float, int]:
    """Return the weight of a type, and how specific its range is, from 0 to 3."""
    ranges = {kind: 3, kind.partition("/")[0] + "/*": 2, "*/*": 1}
    best, quality = 0, 0.0
    for part in accept.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        rank = ranges.get(name, 0)
        if rank > best:
            best, quality = rank, _weight(parameters)
    return quality, best


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
