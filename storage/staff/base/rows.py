"""Rows of the staff's keys and attempts, for the rooms above; their tables are protected."""

from typing import NamedTuple


class ShownAttemptRow(NamedTuple):
    """Attempt in a list; without `staff_email` no member has the address."""

    id: str
    created_at: int
    staff_email: str | None
    network: str
    via: str
    unix_user: str | None
    right_at: int | None


class StaffKeyRow(NamedTuple):
    """A key; `scopes` and `allow_ips` are words with spaces between them."""

    id: str
    staff_id: str
    name: str
    key_hash: str
    prefix: str
    scopes: str
    allow_ips: str
    created_at: int
    expires_at: int
    revoked_at: int | None
    last_used_at: int | None


class OwnedKeyRow(NamedTuple):
    """A key with its member."""

    key: StaffKeyRow
    email: str
    role: str
    locked_at: int | None


class RescueRow(NamedTuple):
    """A rescue, the address of its member, and the address of the operator who acknowledged it."""

    id: str
    staff_id: str
    email: str
    at: int
    expires_at: int
    acknowledged_at: int | None
    acknowledged_by: str | None
