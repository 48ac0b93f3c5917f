"""The automatic top-up over the API of a running daemon, with a stand-in for the provider."""

from pathlib import Path

from support.payments.taking import Shop, shop

from storage.engines.store import Transaction

PATH = "/api/top-up"
PLAN = {"threshold_usd": 5, "amount_usd": 20, "month_usd": 60}


async def test_a_card_is_saved_pays_below_the_threshold_and_is_removed(tmp_path: Path) -> None:
    async with shop(tmp_path) as taking:
        service, stripe = taking.service, taking.stripe
        ada, eve = await service.person(), await service.person()
        shown = (await service.call("GET", PATH, token=ada.token)).body
        assert (shown["is_offered"], shown["state"], "card" in shown) == (True, "off", False)
        early = await service.call("PUT", PATH, PLAN, token=ada.token)
        assert early.code == "card_missing"
        page = await service.call("POST", f"{PATH}/card", {}, token=ada.token)
        assert page.body["url"].startswith(stripe.url)
        (session_id,) = stripe.sessions
        stripe.save_card(session_id)
        await stripe.notify("checkout.session.completed", stripe.sessions[session_id])
        shown = (await service.call("GET", PATH, token=ada.token)).body
        assert (shown["card"], shown["state"]) == ("visa …4242", "off")
        assert "card" not in (await service.call("GET", PATH, token=eve.token)).body
        bad = await service.call("PUT", PATH, {**PLAN, "month_usd": 19}, token=ada.token)
        assert (bad.code, bad.field) == ("invalid_field", "month_usd")
        on = await service.call("PUT", PATH, PLAN, token=ada.token)
        assert (on.body["state"], on.body["month_usd"]) == ("on", 60)
        await _topped_up(taking)
        listed = (await service.call("GET", "/api/payments", token=ada.token)).body["payments"]
        assert [(each["status"], each["is_automatic"]) for each in listed] == [("paid", True)]
        wallet = (await service.call("GET", "/api/wallet", token=ada.token)).body
        assert wallet["usd_balance"] == 20
        spent = (await service.call("GET", PATH, token=ada.token)).body["month_spent_usd"]
        assert spent == 20
        off = await service.call("DELETE", PATH, token=ada.token)
        assert off.body["state"] == "off"
        await service.daemon.store.write(_age_logins)  # a thief may find it open
        late = await service.call("PUT", PATH, PLAN, token=ada.token)
        assert late.code == "fresh_login_needed"
        assert (await service.call("DELETE", f"{PATH}/card", token=ada.token)).status == 200
        assert {each["customer"] for each in stripe.methods.values()} == {None}


async def _topped_up(taking: Shop) -> None:
    """Have the sweeper of the daemon look now."""
    await taking.service.daemon.market.top_ups.sweep()
    assert len(taking.stripe.intents) == 1


async def _age_logins(tx: Transaction) -> None:
    await tx.run("UPDATE login_sessions SET created_at = created_at - 601")
