"""Conditions of an account: the mode of registration, invitations, and consents to the texts."""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.user_fields import email_key
from market.events.context import Context
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.site import invitations, texts
from storage.site.texts import VersionRow

Registration = Literal["open", "invited", "closed"]
DEFAULT_NAME = "proxyd"
SEPARATOR = "\n-- \n"  # before the last lines of an e-mail

CODE_CHARACTERS = 16  # of 32 different ones: 80 bits
CONSENT_KINDS = ("terms", "privacy")
# Time in which keys go on after a new version is valid.
KEYS_GO_ON_SECONDS = 30 * 86_400
LOOK_SECONDS = 10  # the age of the versions that requests with a key are checked against
AGREED_MAX = 10_000
ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ0123456789"
_CODE = re.compile(f"[{ALPHABET}]{{{CODE_CHARACTERS}}}")


class SiteTerms(Struct, frozen=True):
    """The operator's name, contact and mode of registration."""

    name: str = DEFAULT_NAME
    support: str = ""
    registration: Registration = "open"

    @property
    def signature(self) -> str:
        """The last lines of every e-mail; "" for a service without a name of its own."""
        if not self.support and self.name == DEFAULT_NAME:
            return ""
        help_line = f"Help: {self.support}\n" if self.support else ""
        return f"{SEPARATOR}{self.name}\n{help_line}"


class Papers(Struct, frozen=True):
    """Papers that a client shows: the code of an invitation, and the versions it agrees to."""

    invitation: str = ""
    accepted: Mapping[str, int] = {}


NO_PAPERS = Papers()


class Gate:
    """Checks the conditions of an account, at the registration, the login, and uses of keys.

    Args:
        registration: the mode of registration.
        sealing: marks the addresses of erased users that were suspended; None to refuse none.
    """

    def __init__(
        self,
        context: Context,
        registration: Registration = "open",
        sealing: Sealing | None = None,
    ) -> None:
        self._sealing = sealing
        self._store = context.store
        self._now = context.now
        self.registration = registration
        self._looked_at = -LOOK_SECONDS
        self._due: tuple[VersionRow, ...] = ()
        self._agreed: set[str] = set()  # users who need not be looked up for `_due`

    async def check(self, papers: Papers) -> bool:
        """Check a registration before its password is hashed, which is dear.

        Returns:
            False if the code of an invitation cannot be used: a repeated request has used it.

        Raises:
            MarketError: `registration_closed`, `invitation_required`, `terms_not_accepted`;
                `invalid_field`, when a version was never published.
        """
        if self.registration == "closed":
            raise MarketError(Code.REGISTRATION_CLOSED)
        if self.registration == "invited" and not papers.invitation.strip():
            raise MarketError(Code.INVITATION_REQUIRED, field="invitation")
        return await self._store.read(self._check, papers)

    async def check_email(self, email: str) -> None:
        """Check that an address may open an account.

        Raises:
            MarketError: `email_refused`, when its user was suspended and then erased.
        """
        if self._sealing is None:
            return
        mark = email_mark(self._sealing, email)
        if await self._store.read(closures.is_barred, mark, self._now()):
            raise MarketError(Code.EMAIL_REFUSED, field="email")

    async def _check(self, tx: Transaction, papers: Papers) -> bool:
        await self._versions_to_record(tx, papers)
        await _require_published(tx, papers)
        if self.registration != "invited":
            return True
        return await invitations.is_usable(tx, code_hash(papers.invitation), self._now())

    async def enter(self, tx: Transaction, user_id: str, papers: Papers, network: str) -> None:
        """Use the invitation of a new user, and record the consents.

        Raises:
            MarketError: `invitation_invalid`, `terms_not_accepted`.
        """
        now = self._now()
        if self.registration == "invited":
            used = await invitations.use(tx, code_hash(papers.invitation), now)
            if not used:
                raise MarketError(Code.INVITATION_INVALID, field="invitation")
        for version in await self._versions_to_record(tx, papers):
            await texts.agree(tx, user_id, version, now=now, network=network)

    async def log_in(self, tx: Transaction, user_id: str, papers: Papers, network: str) -> None:
        """Record the consents of a user who logs in.

        Raises:
            MarketError: `terms_not_accepted`, when a valid version has no consent of the user;
                `invalid_field`, when a version was never published.
        """
        missing, now = [], self._now()
        await _require_published(tx, papers)
        for version in await _valid(tx, now):
            if await texts.agreed(tx, user_id, version.kind, version.version):
                continue
            if papers.accepted.get(version.kind, 0) < version.version:
                missing.append(version)
            else:
                await texts.agree(tx, user_id, version, now=now, network=network)
        _refuse(missing)

    async def check_key(self, user_id: str) -> None:
        """Check that the user of a key has agreed to the texts that were new 30 days ago.

        Raises:
            MarketError: `terms_not_accepted`.
        """
        now = self._now()
        if not 0 <= now - self._looked_at < LOOK_SECONDS:
            due = tuple(await self._store.read(_valid, now - KEYS_GO_ON_SECONDS))
            if due != self._due:
                self._agreed.clear()
            self._due, self._looked_at = due, now
        if not self._due or user_id in self._agreed:
            return
        due = self._due
        _refuse(await self._store.read(_without, user_id, due))
        if len(self._agreed) >= AGREED_MAX:
            self._agreed.clear()
        if due == self._due:  # else a new version became due meanwhile
            self._agreed.add(user_id)

    async def _versions_to_record(self, tx: Transaction, papers: Papers) -> list[VersionRow]:
        """Return the valid versions; the papers of a new user accept each of them."""
        versions = await _valid(tx, self._now())
        _refuse([each for each in versions if papers.accepted.get(each.kind, 0) < each.version])
        return versions


def email_mark(sealing: Sealing, email: str) -> str:
    """Return the keyed hash under which an address is refused."""
    return sealing.mark(f"e-mail {email_key(email)}")


def code_hash(code: str) -> str:
    """Return the hash under which a code is stored; people may write it in their own way.

    Raises:
        MarketError: `invitation_invalid`: no code looks so.
    """
    plain = re.sub(r"[\s-]", "", code).upper().replace("O", "0").replace("I", "1").replace("L", "1")
    if not _CODE.fullmatch(plain):
        raise MarketError(Code.INVITATION_INVALID, field="invitation")
    return hashlib.sha256(plain.encode()).hexdigest()


async def _valid(tx: Transaction, now: int) -> list[VersionRow]:
    """Return the versions that were valid at a time, of the texts that need a consent."""
    found = [await texts.valid(tx, kind, now) for kind in CONSENT_KINDS]
    return [each for each in found if each is not None]


async def _without(
    tx: Transaction, user_id: str, versions: tuple[VersionRow, ...]
) -> list[VersionRow]:
    """Return the versions without a consent of a user to them or to a later one."""
    return [
        each for each in versions if not await texts.agreed(tx, user_id, each.kind, each.version)
    ]


async def _require_published(tx: Transaction, papers: Papers) -> None:
    """Refuse the consent to a version that was never published.

    Raises:
        MarketError: `invalid_field`.
    """
    for kind, version in papers.accepted.items():
        if version and version > await texts.latest(tx, kind):
            raise MarketError(
                Code.INVALID_FIELD, f"There is no version {version} of {kind}.", field="accepted"
            )


def _refuse(missing: list[VersionRow]) -> None:
    if missing:
        names = ", ".join(f"{each.kind} {each.version}" for each in missing)
        raise MarketError(
            Code.TERMS_NOT_ACCEPTED,
            f"{Code.TERMS_NOT_ACCEPTED.meaning} Not accepted: {names}.",
            field="accepted",
        )
