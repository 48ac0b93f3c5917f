"""Commands that export, close and erase an account."""

import os
from argparse import Namespace
from contextlib import suppress

from market.base.errors import Code, MarketError
from market.erasure.exports import Exports
from market.files.artifacts import Artifacts
from market.logs.disk import LogDisk
from market.staff.leaving import closing, erasing
from market.staff.money.approvals import Outcome, State
from proxyd.cli.output import OutputError
from proxyd.cli.staff.base.desk import WAITS, Command, Desk, Ended, Report, when
from proxyd.cli.staff.base.endings import finish_erasures, tools_of
from proxyd.cli.staff.base.letters import letters_of
from proxyd.ops.base.books import approval_limits
from proxyd.wiring import slices
from storage.logs.files import LogFiles


async def _export(desk: Desk, options: Namespace) -> Report:
    from proxyd.wiring.build_services import blobs_of  # noqa: PLC0415 - imports the whole service

    settings = desk.settings
    user = await closing.export(desk.context, desk.author, options.user)
    terms = slices.log_terms(settings)
    blobs = blobs_of(settings, is_shared=True)
    disk = LogDisk(LogFiles(terms.folder, keep_bytes=terms.keep_bytes, is_shared=True))
    artifacts = Artifacts(desk.context, blobs, slices.artifact_terms(settings))
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(options.file, flags, 0o600)
    except OSError as error:
        raise MarketError(
            Code.INVALID_FIELD, f"{options.file}: {error.strerror or error}", field="file"
        ) from error
    try:
        with os.fdopen(descriptor, "w+b") as file:
            await Exports(desk.context, artifacts, disk).write(user.id, file)
            size = file.seek(0, os.SEEK_END)
    except BaseException as error:
        with suppress(OSError):
            options.file.unlink()
        if isinstance(error, OSError):
            message = f"{error.filename or options.file}: {error.strerror or error}"
            raise OutputError(message) from error
        raise
    finally:
        disk.close()
        await blobs.close()
    return {"exported": {"user": user.id, "file": str(options.file), "bytes": size}}


async def _close(desk: Desk, options: Namespace) -> Report | Ended:
    user, why, limits = options.user, options.reason, approval_limits(desk.settings)
    if options.waived:
        user = await closing.end_sessions(desk.context, limits, desk.author, user, why)
    closed = await closing.close(
        desk.context,
        letters_of(desk),
        limits,
        desk.author,
        user,
        waives=options.waived,
        why=why,
    )
    if isinstance(closed, Outcome):
        return _waits(closed)
    return {"closed": {"user": closed.user_id, "erased_after": when(closed.due_at)}}


async def _erase(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await erasing.erase(
        desk.context,
        tools_of(desk),
        desk.author,
        options.user,
        waives=options.waived,
        needs_second=desk.settings.staff.second_person_erase,
        limits=approval_limits(desk.settings),
        why=options.reason,
    )
    if outcome.state is State.WAITS:
        return _waits(outcome)
    await finish_erasures(desk)
    return {"erased": {"user": outcome.user_id}}


def _waits(outcome: Outcome) -> Ended:
    expires = when(outcome.expires_at)
    row = {"approval": outcome.id, "user": outcome.user_id, "expires": expires}
    return Ended({"waits": row}, WAITS)


COMMANDS: dict[str, Command] = {
    "user export": _export,
    "user close": _close,
    "user erase": _erase,
}
