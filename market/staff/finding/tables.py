"""The tables of a user's page."""

from collections.abc import Mapping

from market.money.money import Currency
from market.staff.base.columns import Column, money, plain, time
from market.staff.finding.users import UserPage

TABLES: Mapping[str, tuple[Column, ...]] = {
    "suspended": (
        plain("part"),
        plain("shown"),
        time("since", "began_at"),
        time("until", "ends_at"),
    ),
    "problems": (
        plain("kind"),
        plain("id"),
        time("at"),
    ),
    "transactions": (
        plain("id"),
        time("at", "created_at"),
        plain("kind"),
        money("amount"),
        plain("currency"),
        plain("reference"),
    ),
    "sessions": (
        plain("id"),
        plain("proxy_user", "username"),
        plain("status"),
        plain("used_bytes", "bytes_used"),
        plain("quota_bytes"),
        time("created_at"),
        time("expires_at"),
    ),
    "devices": (
        plain("id"),
        plain("name"),
        plain("type", "device_type"),
        time("last_seen_at", "last_heartbeat_at"),
        time("revoked_at"),
    ),
    "jobs": (
        plain("id"),
        plain("title"),
        plain("type", "job_type"),
        plain("status"),
        money("price", "price_held"),
        plain("currency"),
        time("created_at"),
    ),
    "keys": (
        plain("id"),
        plain("name"),
        plain("prefix"),
        time("last_used_at"),
        plain("last_used_network"),
        time("expires_at"),
        time("revoked_at"),
    ),
    "logins": (
        plain("id"),
        time("at", "created_at"),
        plain("network"),
        plain("program", "user_agent"),
    ),
    "notes": (
        plain("number"),
        time("at", "created_at"),
        Column("author", lambda row: row.staff_email or row.unix_user),
        plain("text", "body"),
    ),
}


def balances(page: UserPage) -> list[tuple[str, int, int]]:
    """Return each currency with the available and the held amount in micro-units."""
    profile = page.profile
    return [
        (Currency.USD, profile.usd_available, profile.usd_held),
        (Currency.CREDIT, profile.credit_available, profile.credit_held),
    ]
