"""Settings of a service with files of every kind, for its backup."""

import os
import time
from pathlib import Path

from msgspec import structs

from config.settings import Settings
from proxyd.backups.folder import name_of
from support.base.waiting import until_true


def settings_for(folder: Path, url: str = "") -> Settings:
    """Return settings of a service whose files are in a folder."""
    live = folder / "live"
    live.mkdir(mode=0o700)
    (live / "key").write_bytes(b"k" * 48)
    (live / "key").chmod(0o600)
    # On PostgreSQL it is with the files of jobs.
    access_key = (live / "work" if url.startswith("postgresql:") else live) / "access.key"
    access_key.parent.mkdir(exist_ok=True)
    access_key.write_text("a" * 48)
    access_key.chmod(0o600)
    for name in ("tls.crt", "tls.key", "exits.pem"):
        (live / name).write_text(f"content of {name}")
    blob = live / "work" / "blobs" / "ab" / "abcd.1"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"a result" * 1000)
    (live / "work" / "incoming").mkdir()
    (live / "work" / "incoming" / "1").write_text("half")
    (live / "work" / "blobs" / "link").symlink_to(live / "key")
    os.mkfifo(live / "work" / "blobs" / "pipe")
    usual = Settings()
    return structs.replace(
        usual,
        storage=structs.replace(usual.storage, url=url or f"sqlite:///{live}/proxyd.db"),
        auth=structs.replace(usual.auth, signing_key_file=str(live / "key")),
        api=structs.replace(
            usual.api, tls_cert=str(live / "tls.crt"), tls_key=str(live / "tls.key")
        ),
        work=structs.replace(usual.work, folder=str(live / "work")),
        mail=structs.replace(usual.mail, password="a mail password"),
    )


def wait_for_a_new_name(folder: Path) -> None:
    """Wait until the next backup has another name than the last one: a name has its second."""
    last = max((each.name for each in folder.glob("*Z")), default="")
    until_true(lambda: name_of(int(time.time())) > last, "the next second")
