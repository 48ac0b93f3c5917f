"""The meter over a store: what is not sure to be leased is given back."""

import pytest
from support.market.market import Market
from support.market.metering import Node, admitted

from market.money.money import GB
from proxyd.wire.events import Refusal
from storage.bandwidth.sessions import find
from storage.engines.errors import UnavailableError


async def test_the_meter_gives_back_bytes_that_it_is_not_sure_to_have(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    write = market.store.write

    async def unanswered(*unit: object, **values: object) -> None:
        await write(*unit, **values)
        raise UnavailableError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(market.store, "write", unanswered)
        assert await admitted(node.meter, bought) is Refusal.UNAVAILABLE
    assert (await market.store.read(find, bought.session_id)).bytes_leased > 0
    await node.meter.flush()
    assert (await market.store.read(find, bought.session_id)).bytes_leased == 0
