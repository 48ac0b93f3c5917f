"""Accounts of the staff: created, given a role, locked, and proved by a second factor."""

from msgspec import Struct

from market.accounts.passwords import Passwords
from market.base.errors import Code, MarketError
from market.base.user_fields import check_email, check_password, email_key, username_key
from market.events.context import Context
from market.staff.base.acts import STAFF, Act, Changes, act, permit, reason, require_name
from market.staff.base.roles import SECOND_PERSONS, Action, Author, Machine, Member, Role, require
from market.staff.members import attempts
from market.staff.members.attempts import Attempt
from market.staff.members.factors import Factors, NewFactor, code_hash
from storage.accounts import users as user_queries
from storage.engines.store import Transaction
from storage.staff.base import staff as queries
from storage.staff.base import writes
from storage.staff.base.staff import ListedStaffRow, StaffRow
from storage.staff.members import logins

TOTP_DIGITS = 6


class Created(Struct, frozen=True):
    """A member of the staff, with a new second factor that is shown once."""

    id: str
    email: str
    role: Role
    factor: NewFactor


class Credentials(Struct, frozen=True):
    """Proof of a member of the staff: a code is of the authenticator, or a recovery code."""

    password: str
    code: str


async def create(
    context: Context,
    passwords: Passwords,
    factors: Factors,
    author: Author,
    *,
    email: str,
    password: str,
    role: Role,
    why: str,
) -> Created:
    """Add a member of the staff; only a command adds one who can be a second person for money.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `email_taken`.
    """
    require(author, Action.STAFF_CREATE)
    _require_machine(author, role)
    check_email(email)
    check_password(password)
    text = reason(why)
    factor = factors.new(email)
    row = StaffRow(
        id=context.identifiers.new(),
        email=email,
        role=role,
        password_hash=await passwords.hash(password),
        sealed_factor=factor.sealed,
        last_step=0,
        created_at=context.now(),
        locked_at=None,
    )

    async def add(tx: Transaction) -> tuple[Created, Changes]:
        if not await writes.insert_staff(tx, row, email_key=email_key(email)):
            raise MarketError(Code.EMAIL_TAKEN, field="email")
        await writes.insert_recovery(tx, row.id, factor.code_hashes)
        created = Created(row.id, email, role, factor)
        return created, {"role": (None, role), "locked": (None, False)}

    new = Act(author, Action.STAFF_CREATE, STAFF, row.id, text=text)
    return await context.store.write(act, context, new, add)


async def listed(context: Context, author: Author) -> list[ListedStaffRow]:
    """Return the members of the staff, the oldest first.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author)


async def set_role(context: Context, author: Author, name: str, role: Role, why: str) -> StaffRow:
    """Give a member of the staff another role, and return the member as it was.

    Only a command gives a role whose members approve money.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `staff_not_found`, `staff_unchanged`,
            `last_operator`.
    """
    require(author, Action.STAFF_ROLE)
    _require_machine(author, role)
    member = await context.store.read(find, name)

    async def change(tx: Transaction) -> tuple[StaffRow, Changes]:
        row = await _find(tx, member.id)
        if row.role == role:
            raise MarketError(Code.STAFF_UNCHANGED, f"{row.email} has the role {role} already.")
        await _keep_an_operator(tx, row)
        await writes.set_role(tx, row.id, role)
        await logins.end_all(tx, row.id, context.now())
        return row, {"role": (row.role, role)}

    new = Act(author, Action.STAFF_ROLE, STAFF, member.id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def lock(context: Context, author: Author, name: str, why: str) -> StaffRow:
    """Lock a member of the staff; raises as `set_role`."""
    return await _set_locked(context, author, name, why, is_locked=True)


async def unlock(context: Context, author: Author, name: str, why: str) -> StaffRow:
    """Unlock a member of the staff; raises as `set_role`."""
    return await _set_locked(context, author, name, why, is_locked=False)


async def declare(context: Context, author: Author, name: str, user: str, why: str) -> str:
    """Note that a user is a member's own account, and return the user's identifier.

    Members declare their own accounts, and do no act about them from then on.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `staff_not_found`, `staff_unchanged`,
            `user_not_found`.
    """
    text = reason(why)
    require_name(user)
    member = await context.store.read(find, name)

    async def change(tx: Transaction) -> tuple[str, Changes]:
        row = await user_queries.find(tx, user.lower())
        row = row or await user_queries.find_by_email(tx, email_key(user))
        row = row or await user_queries.find_by_username(tx, username_key(user))
        if row is None:
            raise MarketError(Code.USER_NOT_FOUND)
        if not await writes.declare_user(tx, member.id, row.id, context.now()):
            raise MarketError(Code.STAFF_UNCHANGED, "This user was declared before.")
        return row.id, {"own_user": (None, row.id)}

    new = Act(author, Action.STAFF_DECLARE, STAFF, member.id, text=text)
    return await context.store.write(act, context, new, change)


async def reset_factor(
    context: Context, factors: Factors, author: Author, name: str, why: str
) -> Created:
    """Replace the second factor and the recovery codes of a member of the staff.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `staff_not_found`.
    """
    member = await context.store.read(find, name)
    factor = factors.new(member.email)

    async def change(tx: Transaction) -> tuple[Created, Changes]:
        await writes.set_factor(tx, member.id, factor.sealed, factor.code_hashes)
        await logins.end_all(tx, member.id, context.now())
        changed = Created(member.id, member.email, Role(member.role), factor)
        return changed, {"factor": (None, "new")}

    new = Act(author, Action.STAFF_RESET_FACTOR, STAFF, member.id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def check(
    context: Context,
    passwords: Passwords,
    factors: Factors,
    author: Machine,
    name: str,
    given: Credentials,
) -> Member:
    """Check a password and a code, and return the member that they prove; the code is used up.

    Raises:
        MarketError: `staff_not_found`, `invalid_credentials`, `not_permitted` (the member is
            locked), `second_factor_wrong`.
    """
    found = await context.store.read(find, name)
    attempt = Attempt(found.id, found.id, "", author.via, author.unix_user)
    attempt_id = await attempts.begin(context, attempt, most=None)
    if not await passwords.verify(given.password, found.password_hash):
        raise MarketError(Code.INVALID_CREDENTIALS)
    member = Member(found.id, Role(found.role), author.via, author.unix_user)

    async def change(tx: Transaction) -> tuple[None, Changes]:
        changes = await use_code(tx, context, factors, found.id, given.code)
        await attempts.end(tx, context, attempt_id)
        return None, changes

    new = Act(member, Action.STAFF_CHECK, STAFF, member.staff_id)
    await context.store.write(act, context, new, change)
    return member


async def find(tx: Transaction, name: str) -> StaffRow:
    """Return a member of the staff by their e-mail address or identifier.

    Raises:
        MarketError: `invalid_field`, `staff_not_found`.
    """
    require_name(name)
    by_email = await queries.find_by_email(tx, email_key(name))
    row = by_email or await queries.find(tx, name.lower())
    if row is None:
        raise MarketError(Code.STAFF_NOT_FOUND)
    return row


def _require_machine(author: Author, role: Role) -> None:
    """Check that a member does not make a second person: with the new password, or by a role.

    Raises:
        MarketError: `not_permitted`.
    """
    if isinstance(author, Member) and role in SECOND_PERSONS:
        raise MarketError(
            Code.NOT_PERMITTED,
            f"Members with the role {role} approve money, so only a command on the machine of the "
            "service gives this role.",
        )


async def _listed(tx: Transaction, author: Author) -> list[ListedStaffRow]:
    await permit(tx, author, Action.STAFF_LIST)
    return await queries.all_staff(tx)


async def _find(tx: Transaction, staff_id: str) -> StaffRow:
    row = await queries.find(tx, staff_id)
    if row is None:
        raise MarketError(Code.STAFF_NOT_FOUND)
    return row


async def _keep_an_operator(tx: Transaction, row: StaffRow) -> None:
    """Refuse to lock or demote the last operator that is not locked."""
    is_one = row.role == Role.OPERATOR and row.locked_at is None
    if is_one and not await queries.has_other_operator(tx, row.id):
        raise MarketError(Code.LAST_OPERATOR)


async def _set_locked(
    context: Context, author: Author, name: str, why: str, *, is_locked: bool
) -> StaffRow:
    member = await context.store.read(find, name)

    async def change(tx: Transaction) -> tuple[StaffRow, Changes]:
        row = await _find(tx, member.id)
        if (row.locked_at is not None) == is_locked:
            state = "locked" if is_locked else "not locked"
            raise MarketError(Code.STAFF_UNCHANGED, f"{row.email} is {state} already.")
        if is_locked:
            await _keep_an_operator(tx, row)
        await writes.set_locked(tx, row.id, context.now() if is_locked else None)
        if is_locked:
            await logins.end_all(tx, row.id, context.now())
        return row, {"locked": (not is_locked, is_locked)}

    action = Action.STAFF_LOCK if is_locked else Action.STAFF_UNLOCK
    new = Act(author, action, STAFF, member.id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def use_code(
    tx: Transaction, context: Context, factors: Factors, staff_id: str, code: str
) -> Changes:
    """Use up a code, and return its kind for the log.

    Six digits are of the authenticator, any other text is a recovery code.

    Raises:
        MarketError: `second_factor_wrong`.
    """
    code = code.strip()
    row = await _find(tx, staff_id)
    if len(code) == TOTP_DIGITS and code.isdecimal():
        step = factors.step_of(row.sealed_factor, code, context.now())
        if step is None or not await writes.use_step(tx, staff_id, step):
            raise MarketError(Code.SECOND_FACTOR_WRONG)
        return {"factor": (None, "authenticator")}
    if not await writes.use_recovery(tx, staff_id, code_hash(code), context.now()):
        raise MarketError(Code.SECOND_FACTOR_WRONG)
    return {"factor": (None, "recovery code")}
