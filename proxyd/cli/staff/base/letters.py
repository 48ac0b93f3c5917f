"""The letters of the service for one command; the daemon sends them."""

from market.accounts.letters import Letters
from market.accounts.outbox import OUTBOX_PURPOSE, Outbox
from market.base.sealing import Sealing
from proxyd.cli.staff.base.desk import Desk
from proxyd.ops.base.signing_key import signing_key


def sealing_of(desk: Desk) -> Sealing:
    """Return the sealing of waiting e-mails."""
    return Sealing(signing_key(desk.settings), OUTBOX_PURPOSE)


def letters_of(desk: Desk) -> Letters:
    """Return the letters of the service."""
    # Here, so that a command that sends none does not wait for an HTTP server.
    from proxyd.wiring.slices import app_url, site_terms  # noqa: PLC0415

    settings = desk.settings
    emails = Outbox(desk.context, sealing_of(desk), "mail")
    return Letters(emails, app_url(settings, settings.api.port), site_terms(settings).signature)
