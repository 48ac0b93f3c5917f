"""The prices: the figures of the settings, for everybody and for a user with an own price."""

from pathlib import Path

from support.daemons.service import Service, running_in

PATH = "/api/prices"


async def test_prices_need_no_login_and_are_those_of_the_settings(tmp_path: Path) -> None:
    market = {
        "price_per_gb_default_usd": 2.5,
        "fee_percent": 12.5,
        "credit_usd": 0.02,
        "gpu_rates_usd": {"RTX 4090": 0.4},
    }
    exits = {"share_percent": 70}
    payouts = {"methods": ["paypal", "bank"], "minimum_usd": 7, "fee_usd": 0.25}
    payments = {"min_usd": 3, "max_usd": 30}
    async with running_in(
        tmp_path, market=market, exits=exits, payouts=payouts, payments=payments
    ) as service:
        body = (await service.call("GET", PATH)).body
    assert body["credit_usd"] == 0.02
    assert body["traffic"]["price_per_gb"] == 2.5
    assert body["traffic"]["exit_share_percent"] is None  # no exits attach here
    assert body["work"]["fee_percent"] == 12.5
    assert body["work"]["gpus"] == [{"gpu_model": "rtx 4090", "usd_per_hour": 0.4}]
    assert body["payments"] == {"providers": [], "min_usd": 3, "max_usd": 30, "refund_days": 60}
    assert body["payouts"] == {"methods": ["bank", "paypal"], "minimum_usd": 7, "fee_usd": 0.25}


async def test_a_user_sees_the_price_of_a_purchase(service: Service) -> None:
    person = await service.person()
    mine = (await service.call("GET", PATH, token=person.token)).body["traffic"]
    terms = (await service.call("GET", "/api/bandwidth/terms", token=person.token)).body
    assert {name: terms[name] for name in mine if name in terms} == {
        name: value for name, value in mine.items() if name != "exit_share_percent"
    }
