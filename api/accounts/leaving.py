"""Routes of the end of an account: export my data, and close my account."""

from secrets import token_hex
from typing import Any

from msgspec import Struct

from api.accounts.accounts import RequiredText
from api.http.errors import Transport
from api.http.identifiers import in_path
from api.routing.cookies import Cookies
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Download, Nothing, Reply, Route, WithCookie
from market.base.errors import Code
from market.erasure.closing import Closing
from market.erasure.exports import Exports


class ExportReply(Reply, kw_only=True):
    """A permitted export, to be downloaded five times until `expires_at`."""

    id: str
    expires_at: Timestamp


class CloseRequest(Struct):
    """The password; with `waive_balance` the caller gives up the money that is left."""

    password: RequiredText
    waive_balance: bool = False


class CloseReply(Reply, kw_only=True):
    """The closed account is erased after `erased_after`; a login before opens it again."""

    erased_after: Timestamp


class LeavingRoutes:
    """The routes of the end of an account; they are open to suspended users as well."""

    def __init__(self, exports: Exports, closing: Closing, cookies: Cookies) -> None:
        self._exports = exports
        self._closing = closing
        self._cookies = cookies

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/auth/me/export",
                "Ask for an export of all my data",
                self.ask,
                ExportReply,
                auth=Auth.JWT,
                while_suspended=True,
                errors=(Code.TOO_MANY_ATTEMPTS,),
            ),
            Route(
                "GET",
                "/auth/me/export/{export_id}",
                "Download an export of my data",
                self.download,
                Reply,
                auth=Auth.JWT,
                while_suspended=True,
                errors=(Code.EXPORT_NOT_FOUND, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL,),
                has_file=True,
            ),
            Route(
                "POST",
                "/auth/me/close",
                "Close my account",
                self.close,
                CloseReply,
                auth=Auth.JWT,
                while_suspended=True,
                body=CloseRequest,
                example={"password": "correct horse", "waive_balance": False},
                errors=(
                    Code.ACCOUNT_NOT_EMPTY,
                    Code.ACCOUNT_CLOSED,
                    Code.WRONG_PASSWORD,
                    Code.TOO_BUSY,
                    Code.TOO_MANY_ATTEMPTS,
                ),
            ),
        ]

    async def ask(self, call: Call[Nothing, Any]) -> ExportReply:
        """Permit an export."""
        asked = await self._exports.ask(call.user_id)
        return ExportReply(id=asked.id, expires_at=timestamp(asked.expires_at))

    async def download(self, call: Call[Nothing, Any]) -> Reply:
        """Make an export, and send it."""
        export_id = in_path(call.path["export_id"], Code.EXPORT_NOT_FOUND)
        content = await self._exports.open(call.user_id, export_id)
        # Made again for each request: a range of one must not continue another one.
        etag = f"{export_id}-{token_hex(8)}"
        return Download(name="proxyd-export.zip", etag=etag, content=content)

    async def close(self, call: Call[CloseRequest, Any]) -> Reply:
        """Close the account, and end this login."""
        closed = await self._closing.close(
            call.caller, call.body.password, waives=call.body.waive_balance, client=call.client
        )
        reply = CloseReply(erased_after=timestamp(closed.due_at))
        if call.is_console:
            return WithCookie(reply=reply, cookie=self._cookies.forget())
        return reply
