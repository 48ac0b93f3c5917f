"""Routes of device authorisation (RFC 8628): a program requests a key, a person answers."""

from typing import Annotated

from msgspec import Meta, Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.device_codes import (
    CLIENT_NAME_MAX_CHARACTERS,
    INTERVAL_SECONDS,
    LIFETIME_SECONDS,
    DeviceCodes,
)
from market.accounts.scopes import Scope
from market.base.errors import Code

ONE = "/auth/device/{user_code}"
BY_HAND_ERRORS = (Code.USER_CODE_NOT_FOUND, Code.TOO_MANY_ATTEMPTS)


class DeviceRequest(Struct):
    """Name of a program, which people see, and the scopes of its key."""

    client_name: Annotated[str, Meta(min_length=1, max_length=CLIENT_NAME_MAX_CHARACTERS)]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=len(Scope))]


class DeviceReply(Reply, kw_only=True):
    """The code to ask with, and the one that a person types at `verification_uri`.

    Both run out after `expires_in` seconds; between two requests for the key are `interval`.
    """

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceTokenRequest(Struct):
    """The code that the program has got."""

    device_code: Annotated[str, Meta(min_length=1, max_length=100)]


class DeviceTokenReply(Reply, kw_only=True):
    """The key, shown this once."""

    key: str
    key_id: str


class DeviceShownReply(Reply, kw_only=True):
    """Request of a program: its name, its network, its time, and its scopes."""

    client_name: str
    network: str
    created_at: Timestamp
    scopes: list[str]


class DeviceCodeRoutes:
    """The routes of device authorisation.

    Routes for people require a login: no key may let keys in.
    """

    def __init__(self, codes: DeviceCodes) -> None:
        self._codes = codes

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/auth/device",
                "Ask for an API key that a person approves on another device",
                self.begin,
                DeviceReply,
                body=DeviceRequest,
                errors=(Code.TOO_MANY_ATTEMPTS, Code.TOO_BUSY),
                example={"client_name": "proxyd on attic", "scopes": ["sessions:read"]},
            ),
            Route(
                "POST",
                "/auth/device/token",
                "Get the key, once it is approved",
                self.redeem,
                DeviceTokenReply,
                body=DeviceTokenRequest,
                errors=(
                    Code.AUTHORIZATION_PENDING,
                    Code.SLOW_DOWN,
                    Code.ACCESS_DENIED,
                    Code.EXPIRED_TOKEN,
                    Code.TOO_MANY_KEYS,
                ),
                example={"device_code": "the code of POST /auth/device"},
            ),
            Route(
                "GET",
                ONE,
                "Which program asks with this code",
                self.show,
                DeviceShownReply,
                auth=Auth.JWT,
                errors=BY_HAND_ERRORS,
            ),
            Route(
                "POST",
                f"{ONE}/approve",
                "Let this program have a key of mine",
                self.approve,
                Reply,
                auth=Auth.JWT,
                body_optional=True,
                errors=(*BY_HAND_ERRORS, Code.FRESH_LOGIN_NEEDED),
            ),
            Route(
                "POST",
                f"{ONE}/deny",
                "Refuse this program",
                self.deny,
                Reply,
                auth=Auth.JWT,
                body_optional=True,
                errors=BY_HAND_ERRORS,
            ),
        ]

    async def begin(self, call: Call[DeviceRequest, Nothing]) -> Reply:
        """Register a program that waits for approval."""
        body = call.body
        begun = await self._codes.begin(body.client_name, body.scopes, client=call.client)
        uri = self._codes.verification_uri
        return DeviceReply(
            device_code=begun.device_code,
            user_code=begun.user_code,
            verification_uri=uri,
            verification_uri_complete=f"{uri}?user_code={begun.user_code}",
            expires_in=LIFETIME_SECONDS,
            interval=INTERVAL_SECONDS,
        )

    async def redeem(self, call: Call[DeviceTokenRequest, Nothing]) -> Reply:
        """Hand the key over."""
        issued = await self._codes.redeem(call.body.device_code)
        return DeviceTokenReply(key=issued.key, key_id=issued.row.id)

    async def show(self, call: Call[Nothing, Nothing]) -> Reply:
        """Return the request of a program for a key."""
        row = await self._codes.find(call.caller, call.path["user_code"])
        return DeviceShownReply(
            client_name=row.client_name,
            network=row.network,
            created_at=timestamp(row.created_at),
            scopes=row.scopes.split(","),
        )

    async def approve(self, call: Call[Nothing, Nothing]) -> Reply:
        """Answer yes."""
        await self._codes.answer(call.caller, call.path["user_code"], is_approved=True)
        return Reply()

    async def deny(self, call: Call[Nothing, Nothing]) -> Reply:
        """Answer no."""
        await self._codes.answer(call.caller, call.path["user_code"], is_approved=False)
        return Reply()
