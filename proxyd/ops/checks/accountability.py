"""Warnings about an access log that cannot answer a complaint about an exit."""

import shutil
from collections.abc import Iterator
from contextlib import suppress

from config.settings import Settings
from proxyd.ops.access_log.access_place import access_folder

KEEP_MIN_DAYS = 30  # complaints arrive weeks after the traffic
FREE_MIN_SHARE = 0.1


def unanswerable(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting that leaves complaints without an answer."""
    log, folder = settings.access_log, access_folder(settings)
    if folder is None:
        if settings.exits.host:
            yield (
                "access_log.enabled is off, and exits.host is set: a complaint about an exit leads "
                "to its owner, and no record shows which customer used it; set it to auto"
            )
        return
    if settings.exits.host and log.target == "none":
        yield (
            "access_log.target is none, and exits.host is set: records do not show which of "
            "several customers reached an address; set it to hash"
        )
    if log.keep_days < KEEP_MIN_DAYS:
        yield (
            f"access_log.keep_days is {log.keep_days}: complaints often arrive later, and find no "
            f"record; set it to {KEEP_MIN_DAYS} or more"
        )
    with suppress(OSError):  # not there before the first start
        usage = shutil.disk_usage(folder)
        if usage.free < usage.total * FREE_MIN_SHARE:
            yield (
                f"access_log.folder: less than {FREE_MIN_SHARE:.0%} of the disk of {folder} is "
                "free; records are lost when it is full"
            )
