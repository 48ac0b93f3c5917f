"""The looks at the parts of the service."""

from typing import Any

import pytest
from support.market.market import Market

from proxyd.ops.watches.status_watch import StatusWatch


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"is_mail_away": None}, {"mail": "off", "exits": "off", "proxy": "working"}),
        (
            {"is_mail_away": lambda: True, "has_exits": True},
            {"mail": "failing", "exits": "working"},
        ),
        ({"is_mail_away": lambda: False, "is_listening": lambda: False}, {"proxy": "failing"}),
    ],
)
async def test_each_part_has_a_state(
    market: Market, facts: dict[str, Any], expected: dict[str, str]
) -> None:
    given = {"is_listening": lambda: True, "has_exits": False, **facts}
    await StatusWatch(market.status, **given).look()
    found = {each.name: each.state for each in (await market.status.report()).components}
    assert expected.items() <= found.items()
