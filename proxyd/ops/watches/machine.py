"""Disks and certificates of this machine, for alerts and metrics."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from config.settings import Settings
from proxyd.ops.access_log.access_place import access_folder
from storage.engines.place import SQLITE, is_sqlite


class Machine:
    """The folders and certificates that the settings name.

    Args:
        settings: the settings of the daemon.
        work: the folder of the files of jobs.
    """

    def __init__(self, settings: Settings, work: Path) -> None:
        self._folders = {"work": work}
        if is_sqlite(settings.storage.url):
            self._folders["database"] = Path(settings.storage.url.removeprefix(SQLITE)).parent
        access_log = access_folder(settings)
        if access_log is not None:
            self._folders["access_log"] = access_log
        self._certificates = {
            name: Path(path)
            for name, path in (
                ("api", settings.api.tls_cert),
                ("exits", settings.exits.tls_cert),
                ("apps", settings.apps.tls_cert),
                ("staff", settings.staff.tls_cert),
            )
            if path
        }

    def free(self) -> Mapping[str, float]:
        """Return the free share of the disk of each folder that exists."""
        found = {}
        for name, folder in self._folders.items():
            try:
                usage = shutil.disk_usage(folder)
            except OSError:  # made at its first use
                continue
            found[name] = usage.free / max(usage.total, 1)
        return found

    def certificates(self, now: int) -> Mapping[str, int]:
        """Return the seconds until each certificate expires; one that cannot be read has 0."""
        # Here, so that a start without TLS does not wait for it.
        from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415

        found = {}
        for name, path in self._certificates.items():
            try:
                certificate = load_pem_x509_certificate(path.read_bytes())
            except (OSError, ValueError):
                found[name] = 0
            else:
                found[name] = int(certificate.not_valid_after_utc.timestamp()) - now
        return found
