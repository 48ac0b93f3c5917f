"""Parsers of the commands about the public side: invitations, published texts, and notices."""

from pathlib import Path
from typing import TYPE_CHECKING

from proxyd.cli.parsing import Topics, commands_of, count, text
from proxyd.cli.staff.parsers import add_reason, finish_command

if TYPE_CHECKING:
    import argparse

# As in `market.staff.site.site`, which no parser waits for.
SEVERITIES = ("info", "warning", "outage")
TEXTS = ("terms", "privacy", "imprint")


def add_topics(topics: Topics) -> None:
    """Add the topics of the public side of the service."""
    topics.add("site", "invitations and published texts", _add_site)
    topics.add("status", "notices on the page of the status", _add_status)


def _add_site(topic: "argparse.ArgumentParser") -> None:
    """Add the commands about invitations and published texts."""
    site = commands_of(topic)
    invite = site.add_parser("invite", help="make a code that opens accounts")
    invite.add_argument(
        "--uses", type=count, default=1, metavar="N", help="number of accounts, 1 by default"
    )
    invite.add_argument(
        "--days", type=count, default=30, metavar="N", help="days until it expires, 30 by default"
    )
    add_reason(invite)
    finish_command(invite, "site invite")
    finish_command(
        site.add_parser("invitations", help="the newest invitations"), "site invitations"
    )
    withdraw = site.add_parser("withdraw", help="take the remaining uses from an invitation")
    withdraw.add_argument("invitation", type=text, metavar="ID", help="of `site invitations`")
    add_reason(withdraw)
    finish_command(withdraw, "site withdraw")
    publish = site.add_parser("publish", help="publish a version of a text; it never changes")
    publish.add_argument("kind", choices=TEXTS, help="the kind of text")
    publish.add_argument(
        "--file", type=Path, required=True, metavar="FILE", help="the text, in Markdown"
    )
    publish.add_argument(
        "--locale", type=text, default="en", metavar="LANGUAGE", help="such as en, the default"
    )
    publish.add_argument(
        "--valid-from", type=text, metavar="DAY", help="such as 2027-01-31, in UTC; now by default"
    )
    publish.add_argument(
        "--version", type=count, metavar="N", help="translate this version, make no new one"
    )
    add_reason(publish)
    finish_command(publish, "site publish")
    check = site.add_parser("check", help="texts that are valid, and parts that are missing")
    finish_command(check, "site check")


def _add_status(topic: "argparse.ArgumentParser") -> None:
    """Add the commands about notices."""
    status = commands_of(topic)
    notice = status.add_parser("notice", help="show a notice")
    notice.add_argument("title", type=text, metavar="TITLE", help="one line for visitors")
    notice.add_argument("--text", type=text, metavar="TEXT", help="more for visitors")
    notice.add_argument(
        "--severity", choices=SEVERITIES, default="info", help="info, the default, warning, outage"
    )
    add_reason(notice)
    finish_command(notice, "status notice")
    end = status.add_parser("end", help="end a notice")
    end.add_argument("notice", type=text, metavar="ID", help="of `status notices`")
    add_reason(end)
    finish_command(end, "status end")
    finish_command(status.add_parser("notices", help="the newest notices"), "status notices")
