"""The settings of the site: what users could not read or reach is refused by name."""

from typing import Any

import msgspec
import pytest

from config.settings import Settings
from config.site import DARK_GROUNDS, LIGHT_GROUNDS, contrast, site_problems


def problems(section: str = "site", **values: Any) -> list[str]:
    return list(site_problems(msgspec.convert({section: values}, Settings)))


def test_the_defaults_and_a_usual_site_have_no_problem() -> None:
    assert list(site_problems(Settings())) == []
    usual = {"name": "Ürün Proxy", "colour": "#7a1fa2", "dark_colour": "#e1a6ff"}
    for support in ("help@example.com", "https://example.com/help", ""):
        assert problems(**usual, support=support, registration="invited") == []
    assert problems("alerts", email=["olga@example.com"]) == []


def test_contrast_is_that_of_the_specification() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#123456", "#123456") == 1
    for own, grounds in (("#0b5cad", LIGHT_GROUNDS), ("#7bb8f5", DARK_GROUNDS)):
        assert all(contrast(own, ground) >= 4.5 for ground in grounds)


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"name": ""}, "site.name"),
        ({"name": " a"}, "site.name"),
        ({"name": "a\nb"}, "site.name"),
        ({"name": "a" * 41}, "site.name"),
        ({"support": "nobody"}, "site.support"),
        ({"support": "a@b.example, c@d.example"}, "site.support"),
        ({"support": "javascript:alert(1)"}, "site.support"),
        ({"support": "http://example.com"}, "site.support"),
        ({"support": 'https://example.com/"><script>'}, "site.support"),
        ({"colour": "blue"}, "site.colour"),
        ({"colour": "#ffff00"}, "site.colour"),
        ({"colour": "#0b5cad;}"}, "site.colour"),
        ({"dark_colour": "#333333"}, "site.dark_colour"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(values: dict[str, str], setting: str) -> None:
    [problem] = problems(**values)
    assert problem.startswith(f"{setting}: ")


SECRET = "whsec_" + "QUFB" * 8


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"webhook_url": "ftp://a.example/x", "webhook_secret": SECRET}, "alerts.webhook_url"),
        ({"webhook_url": "https://a:b@c.example", "webhook_secret": SECRET}, "alerts.webhook_url"),
        ({"webhook_url": "https://a.example"}, "alerts.webhook_secret"),
        (
            {"webhook_url": "https://a.example", "webhook_secret": "QUFB" * 8},
            "alerts.webhook_secret",
        ),
        (
            {"webhook_url": "https://a.example", "webhook_secret": "whsec_QUFB"},
            "alerts.webhook_secret",
        ),
        (
            {"webhook_url": "https://a.example", "webhook_secret": "whsec_" + "\u00fc" * 40},
            "alerts.webhook_secret",
        ),
        ({"webhook_secret": SECRET}, "alerts.webhook_secret"),
    ],
)
def test_a_webhook_of_alerts_that_cannot_be_used_is_named(
    values: dict[str, str], setting: str
) -> None:
    [problem] = problems("alerts", **values)
    assert problem.startswith(f"{setting}: ")
    secret = values.get("webhook_secret")
    assert secret is None or secret not in problem


def test_a_webhook_of_alerts_has_a_url_and_a_secret() -> None:
    for url in ("https://a.example/x", "http://127.0.0.1:9093/alerts"):
        assert problems("alerts", webhook_url=url, webhook_secret=SECRET) == []


def test_receivers_of_alerts_are_a_few_addresses() -> None:
    assert problems("alerts", email=["olga"])[0].startswith("alerts.email: ")
    assert problems("alerts", email=["a\r\nBcc: b@c.example"])[0].startswith("alerts.email: ")
    assert "at most 10" in problems("alerts", email=[f"a{n}@b.example" for n in range(11)])[0]
