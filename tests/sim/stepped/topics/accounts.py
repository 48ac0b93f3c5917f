"""Units on users: logins, passwords, programs, and the works of keys."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.accounts.keys import NewKey
from market.accounts.scopes import Maker, Scope
from market.erasure import erasing
from market.notify import webhooks
from market.notify.webhooks import DeliveryOutcome
from market.payments.particulars import Particulars
from market.recovery import recovery
from storage.notify import webhooks as webhook_queries
from tests.sim.stepped.belongings import PASSWORD
from tests.sim.stepped.side import Action, Side

OK = DeliveryOutcome(200, "", 12, "thanks")
GONE = DeliveryOutcome(410, "status 410", 1)


# --- logins and passwords -----------------------------------------------------------------------


async def _logs_in(side: Side) -> Any:
    await side.market.accounts.login(email="ada@example.com", password=PASSWORD)


async def _ends_login(name: str, side: Side) -> Any:
    caller = side.world.people_have.callers["ada"]
    login = side.world.people_have.callers[name]
    await side.market.accounts.end_login(caller, login.session_id)


async def _ends_other_logins(side: Side) -> Any:
    await side.market.accounts.end_other_logins(side.world.people_have.callers["ada"])


async def _changes_password(name: str, side: Side) -> Any:
    caller = side.world.people_have.callers[name]
    await side.market.accounts.change_password(caller, old=PASSWORD, new="longer than that")


async def _resets(name: str, side: Side) -> Any:
    proof = side.world.people_have.proofs[f"reset {name}"]
    letters = side.market.accounts._letters
    await side.market.store.write(
        recovery._reset, side.market.context, letters, proof.token_hash, "a hash"
    )


async def _answers_forgotten(side: Side) -> Any:
    return await side.market.recovery._answer_some()


async def _verifies(side: Side) -> Any:
    proof = side.world.people_have.proofs["verify ada"]
    await side.market.store.write(recovery._verify, proof.token_hash, side.market.clock.now)


async def _sends_proof(side: Side) -> Any:
    await side.market.recovery.resend_verification(side.world.people_have.callers["ada"])


async def _approves(name: str, is_approved: bool, side: Side) -> Any:
    has = side.world.people_have
    code = has.codes["asked of ada"].user_code
    await side.market.device_codes.answer(has.callers[name], code, is_approved=is_approved)


async def _redeems(name: str, side: Side) -> Any:
    await side.market.device_codes.redeem(side.world.people_have.codes[name].device_code)


async def _closes(side: Side) -> Any:
    caller = side.world.people_have.callers["ada"]
    closed = await side.market.leaving.closing.close(caller, PASSWORD, waives=True)
    return closed.due_at


async def _asks_for_an_export(side: Side) -> Any:
    caller = side.world.people_have.callers["ada"]
    return (await side.market.leaving.exports.ask(caller.user_id)).expires_at


async def _sets_particulars(side: Side) -> Any:
    caller = side.world.people_have.callers["ada"]
    await side.market.particulars.put(caller.user_id, Particulars("Ada", ("Main Street 1",), "DE"))


async def _erases(side: Side) -> Any:
    caller = side.world.people_have.callers["ada"]
    write = side.market.store.write
    return await write(erasing.erase_again, side.market.context, caller.user_id)


ACCOUNTS: Mapping[str, Action] = {
    "logs in": _logs_in,
    "ends a login": partial(_ends_login, "ada again"),
    "ends its own login": partial(_ends_login, "ada"),
    "ends other logins": _ends_other_logins,
    "changes the password": partial(_changes_password, "ada"),
    "changes the password in another login": partial(_changes_password, "ada again"),
    "resets the password": partial(_resets, "ada"),
    "answers a forgotten password": _answers_forgotten,
    "confirms the address": _verifies,
    "sends another secret": _sends_proof,
    "approves a program": partial(_approves, "ada", True),
    "approves a program in another login": partial(_approves, "ada again", True),
    "denies a program": partial(_approves, "ada", False),
    "asks for a key before the approval": partial(_redeems, "asked of ada"),
    "gets the key of a program": partial(_redeems, "approved by ada"),
    "closes the account": _closes,
    "asks for an export": _asks_for_an_export,
    "sets the particulars for documents": _sets_particulars,
    "erases the account": _erases,
}


# --- keys and their works -----------------------------------------------------------------------


async def _makes_device(side: Side) -> Any:
    await side.market.devices.create(
        side.buyer,
        name="new",
        device_type="server",
        min_price_usd=None,
        maker=Maker(key=side.world.people_have.key),
        receipt=side.receipt(side.buyer),
    )


async def _makes_hook(side: Side) -> Any:
    maker = Maker(key=side.world.people_have.key)
    await side.market.webhooks.create(
        side.buyer, url="https://n.example.com/", types=["*"], description="", maker=maker
    )


async def _ends_works(side: Side) -> Any:
    await side.market.made_by_keys.end(side.buyer, side.world.people_have.key_id)


async def _revokes_key(side: Side) -> Any:
    await side.market.keys.revoke(side.buyer, side.world.people_have.key_id)


async def _makes_key(side: Side) -> Any:
    await side.market.keys.create(side.buyer, NewKey(name="another", scopes=(Scope.ACCOUNT_READ,)))


async def _rolls_key(side: Side) -> Any:
    await side.market.keys.roll(side.buyer, side.world.people_have.key_id, overlap_hours=0)


KEYS: Mapping[str, Action] = {
    "makes a device with a key": _makes_device,
    "makes a webhook with a key": _makes_hook,
    "ends the works of a key": _ends_works,
    "revokes a key": _revokes_key,
    "makes a key": _makes_key,
    "rolls a key": _rolls_key,
}


# --- webhooks -----------------------------------------------------------------------------------


async def _settles(number: int, outcome: DeliveryOutcome, side: Side) -> Any:
    await side.market.webhooks.settle(side.world.people_have.deliveries[number], outcome)


async def _retries(side: Side) -> Any:
    delivery = side.world.people_have.deliveries[0].row.id
    return (await side.market.webhooks.retry(side.buyer, delivery)).status


async def _gives_up_disabled(side: Side) -> Any:
    delivery = side.world.people_have.deliveries[0].row.id
    await side.market.store.write(webhook_queries.give_up_disabled, delivery)


async def _tests(side: Side) -> Any:
    await side.market.webhooks.test(side.buyer, side.world.people_have.hooks["of the key"])


async def _changes_hook(is_enabled: bool, side: Side) -> Any:
    hook = side.world.people_have.hooks["of the key"]
    await side.market.webhooks.change(side.buyer, hook, is_enabled=is_enabled)


async def _rolls_hook(side: Side) -> Any:
    await side.market.webhooks.roll(side.buyer, side.world.people_have.hooks["of the key"])


async def _deletes_hook(side: Side) -> Any:
    await side.market.webhooks.delete(side.buyer, side.world.people_have.hooks["of the key"])


async def _drops(side: Side) -> Any:
    hook = side.world.people_have.hooks["of the key"]
    await side.market.store.write(webhooks._drop_newest, hook, 0)


WEBHOOKS: Mapping[str, Action] = {
    "records a delivery": partial(_settles, 0, OK),
    "records that the endpoint is gone": partial(_settles, 0, GONE),
    "retries a delivery": _retries,
    "gives up a delivery of a disabled endpoint": _gives_up_disabled,
    "tests an endpoint": _tests,
    "disables an endpoint": partial(_changes_hook, False),
    "enables an endpoint": partial(_changes_hook, True),
    "rolls the secret of an endpoint": _rolls_hook,
    "deletes an endpoint": _deletes_hook,
    "drops deliveries": _drops,
    "ends the works of a key": _ends_works,
}
