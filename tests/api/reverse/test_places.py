"""Addresses of apps on the web, and the app of an address."""

from support.base.cases import cases

from api.reverse.places import Place, Places

APP = "01998f00-0000-7000-8000-00000000000a"


def test_each_app_has_a_host_below_a_domain() -> None:
    places = Places("https://apps.example.com:8443", "Apps.example.com.")
    assert places.url(APP) == f"https://{APP}.apps.example.com:8443/"
    assert places.url(APP, 8888) == f"https://{APP}-8888.apps.example.com:8443/"
    host = f"{APP}.apps.example.com:8443"
    expected = Place(APP, 0, f"https://{host}", "", "/a?b")
    assert places.find(host, "/a?b") == expected
    assert places.find(host.upper(), "/a?b") == expected
    found = places.find(f"{APP}-8888.apps.example.com", "/")
    assert found is not None
    assert (found.app_id, found.port) == (APP, 8888)


def test_without_a_domain_each_has_a_path() -> None:
    places = Places("http://127.0.0.1:8081", "")
    assert places.url(APP) == f"http://127.0.0.1:8081/apps/{APP}/"
    prefix = f"/apps/{APP}-22"
    found = places.find("whatever", f"{prefix}/a/b?c=/d")
    assert found == Place(APP, 22, "http://127.0.0.1:8081", prefix, "/a/b?c=/d")
    assert places.find("whatever", f"{prefix}?c") == found._replace(target="?c")


@cases(
    "host",
    [
        "",
        "apps.example.com",
        f"{APP}.other.com",
        f"x.{APP}.apps.example.com",
        f"{APP}apps.example.com",
        f"{APP}-0.apps.example.com",
        f"{APP}-99999.apps.example.com",
        f"{APP}-08.apps.example.com",
        f"{APP[:-1]}.apps.example.com",
        f"{APP}.apps.example.com:x",
        f"{APP}.apps.example.com/",
        f"a@{APP}.apps.example.com",
        f"{APP}.apps.example.com, {APP}.apps.example.com",
        "[::1]:8081",
    ],
)
def test_other_hosts_are_no_apps(host: str) -> None:
    assert Places("https://apps.example.com", "apps.example.com").find(host, "/") is None


@cases(
    "target", ["/", "/apps", "/apps/", f"/{APP}/", f"/apps/{APP}x/", f"/Apps/{APP}/", "/apps/../"]
)
def test_other_paths_are_no_apps(target: str) -> None:
    assert Places("http://127.0.0.1:8081", "").find("127.0.0.1", target) is None
