"""The program of a client, in two words that its user recognises: "Firefox, Linux"."""

# The first match in the header User-Agent counts, because browsers also name the browsers that they
# imitate.
_PROGRAMS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("YaBrowser/", "Yandex Browser"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
    ("proxyctl", "proxyctl"),
    ("curl/", "curl"),
    ("Python", "Python"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iPadOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)


def program(user_agent: str) -> str:
    """Return the program of a User-Agent, and its system; unknown parts are left out."""
    found = (
        next((name for mark, name in known if mark in user_agent), "")
        for known in (_PROGRAMS, _SYSTEMS)
    )
    return ", ".join(name for name in found if name)
