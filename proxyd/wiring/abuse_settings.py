"""The rules against scans and spam, by the settings."""

from config.settings import Settings
from market.staff.abuse.rule_tickets import RuleSetting
from proxyd.ops.access_log.abuse_watch import LOGIN, MAIL, SCAN
from proxyd.ops.access_log.access_place import access_folder


def rules_of(settings: Settings) -> list[RuleSetting]:
    """Return the rules against scans and spam; without records none of them is on."""
    abuse, is_on = settings.abuse, access_folder(settings) is not None
    rules = (
        (
            SCAN,
            abuse.scan_mode,
            abuse.scan_targets,
            f"targets on one port, more than {abuse.scan_failed_percent} % failed",
            abuse.scan_failed_percent,
            abuse.scan_halt_seconds,
        ),
        (
            MAIL,
            abuse.mail_mode,
            abuse.mail_refusals,
            "refused dials to mail ports",
            -1,
            abuse.mail_halt_seconds,
        ),
        (
            LOGIN,
            abuse.login_mode,
            abuse.login_connections,
            "connections to one host's login port",
            -1,
            abuse.login_halt_seconds,
        ),
    )
    return [
        RuleSetting(
            name,
            mode if is_on and most else "off",
            most,
            of,
            percent,
            seconds if mode == "act" else None,
        )
        for name, mode, most, of, percent, seconds in rules
    ]
