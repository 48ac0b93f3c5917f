"""The staff, their log and its texts survive a backup, a restoration and a move."""

from pathlib import Path

import pytest
from pyotp import TOTP, parse_uri
from support.base.clock import Clock
from support.daemons.backed_up import settings_for
from support.market.market import Market
from support.market.staff import PASSWORD, ROOT
from support.market.staff_money import ASKER, SECOND, corrected

from config.load import load
from config.settings import Settings
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.staff.audit import audit_all
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from market.staff.finding import users
from market.staff.members import accounts, attempts, keys
from market.staff.members.accounts import Credentials
from market.staff.members.factors import Factors
from market.staff.members.keys import NewStaffKey, StaffKeys
from market.staff.money import user_limits
from market.staff.money.second_person import approve
from market.staff.money.user_limits import NewLimits
from proxyd.backups.making import back_up_all
from proxyd.backups.restoring import restore
from proxyd.ops.base.signing_key import signing_key
from storage.backups.move import move
from storage.engines.errors import ConstraintError
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction

pytestmark = pytest.mark.both_engines

NAME = "olga@staff.example.com"
REFUSED = {
    "DELETE FROM staff_log": "staff_log_is_append_only",
    "UPDATE staff_log SET action = 'none'": "staff_log_is_append_only",
    "DELETE FROM staff_log_head": "staff_log_is_append_only",
    "UPDATE texts SET body = 'none'": "texts_are_only_erased",
    "DELETE FROM texts": "texts_are_only_erased",
    "UPDATE staff SET role = 'support'": "staff_keeps_an_operator",
    "DELETE FROM staff": "staff_is_only_locked",
    "UPDATE approvals SET amount = 1": "approvals_are_decided_once",
    "DELETE FROM staff_money": "staff_money_is_append_only",
}


class Desk:
    """A service with a second factor, a log, an erased text and a used code."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.clock = Clock()
        self.market = Market(store, self.clock)
        self.factors = Factors(Sealing(signing_key(settings), b"staff factors"))
        self.codes: tuple[str, ...] = ()
        self.request = ""  # of a correction that waits for a second person
        self.authenticator = TOTP("A" * 32)
        self.key = ""

    async def act(self) -> None:
        """Write acts."""
        context = self.market.context
        created = await accounts.create(
            context,
            self.market.passwords,
            self.factors,
            ROOT,
            email=NAME,
            password=PASSWORD,
            role=Role.OPERATOR,
            why="hired",
        )
        user = await self.market.person()
        for text in ("asked by telephone", "asked again\nabout é\\t"):
            await users.note(context, ROOT, user, text)
        await self.market.store.write(
            run, "UPDATE texts SET body = '', salt = '', erased_at = 1 WHERE body LIKE '%telephone'"
        )
        await corrected(self.market, ASKER, user, 5)
        self.request = (await corrected(self.market, ASKER, user, 500)).id
        new = NewLimits(price_percent=80)
        await user_limits.change(context, ROOT, user, new, "agreed")
        self.codes = created.factor.codes
        authenticator = parse_uri(created.factor.uri)
        assert isinstance(authenticator, TOTP)
        self.authenticator = authenticator
        await self.check(self.codes[0])
        await self.check(self.code())
        new = NewStaffKey(name="x", scopes=(StaffScope.READ,), allow_ips=("192.0.2.7",))
        self.key = (await keys.create(context, ROOT, NAME, new, "reports")).text

    def code(self) -> str:
        return str(self.authenticator.at(self.clock.now))

    async def check(self, code: str) -> None:
        given = Credentials(PASSWORD, code)
        market = self.market
        await accounts.check(market.context, market.passwords, self.factors, ROOT, NAME, given)

    async def refuses(self, code: str) -> None:
        with pytest.raises(MarketError) as caught:
            await self.check(code)
        assert caught.value.code == Code.SECOND_FACTOR_WRONG

    async def assert_continued(self, url: str, settings: Settings) -> None:
        """Check that a copy of the database has everything, and goes on as the original does."""
        store = await open_store(url)
        try:
            there = Desk(store, settings)
            there.authenticator = self.authenticator
            caller = await StaffKeys(there.market.context).authenticate(self.key, "192.0.2.7")
            assert caller.email == NAME
            tried = await attempts.listed(there.market.context, ROOT, limit=10)
            assert [row.right_at is not None for row in tried] == [True, True]
            await there.refuses(self.codes[0])
            await there.refuses(there.code())
            there.clock.jump(60)
            await there.check(there.code())
            await there.check(self.codes[1])
            done = await approve(there.market.context, SECOND, self.request)
            assert (await there.market.bandwidth.terms_of(done.user_id)).price_default == 800_000
            for statement, name in REFUSED.items():
                with pytest.raises(ConstraintError) as caught:
                    await store.write(run, statement)
                assert caught.value.constraint == name
            report = await audit_all(store)
            assert report.passed, report
            there.market.passwords.close()
        finally:
            await store.close()


async def run(tx: Transaction, statement: str) -> int:
    return await tx.run(statement)


async def test_a_restored_service_has_the_staff(
    store: Store, store_url: str, engine: str, empty_postgres: str, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, store_url)
    desk = Desk(store, settings)
    await desk.act()
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path
    database = "" if engine == "sqlite" else empty_postgres
    _, restored = await restore(backup, tmp_path / "new", database)
    assert restored.report.passed, restored.report
    new = load(restored.settings, {})
    assert new.auth.signing_key_file != settings.auth.signing_key_file
    await desk.assert_continued(new.storage.url, new)
    desk.market.passwords.close()


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_moved_service_has_the_staff(
    store: Store, store_url: str, empty_postgres: str, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, store_url)
    desk = Desk(store, settings)
    await desk.act()
    moved = {
        each.table: each.rows
        for each in await move(Path(store_url.removeprefix("sqlite:///")), empty_postgres)
    }
    assert (moved["staff"], moved["staff_log"], moved["texts"]) == (1, 9, 7)
    assert (moved["staff_attempts"], moved["staff_keys"]) == (2, 1)
    assert (moved["approvals"], moved["staff_money"], moved["user_limits"]) == (1, 1, 1)
    await desk.assert_continued(empty_postgres, settings)
    desk.market.passwords.close()
