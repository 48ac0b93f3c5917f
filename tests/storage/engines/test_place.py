"""Where a database is can be printed: nothing in it is a secret."""

from pathlib import Path

import pytest
from support.base.cases import cases

from storage.engines.place import place

UNKNOWN = "the PostgreSQL database"


def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place("sqlite:///var/proxyd.db") == f"{tmp_path.resolve()}/var/proxyd.db"
    assert place("sqlite:////srv/proxyd.db") == "/srv/proxyd.db"


@cases(
    ("url", "shown"),
    [
        ("postgresql://db.example/books", "postgresql://db.example/books"),
        ("postgresql://ada:s3cr3t@db.example:5433/books", "postgresql://db.example:5433/books"),
        (
            "postgresql://ada:s3cr3t@db.example/books?password=s3cr3t",
            "postgresql://db.example/books",
        ),
        (
            "postgresql://ada:s3cr3t@one:5433,[::1]:5432,two/books",
            "postgresql://one:5433,[::1]:5432,two/books",
        ),
        ("postgresql:///books?host=/run&password=s3cr3t", "postgresql:///books"),
        ("postgresql://ada:s3cr3t@db.example/books\x1bforged", UNKNOWN),
        ("postgresql://ada:12#s3cr3t@db.example/books", UNKNOWN),
        ("postgresql://localhost:12,pw#s3cr3t@db.example/books", UNKNOWN),
        ("postgresql://localhost:12?a=s3cr3t@db.example/books", UNKNOWN),
        ("postgresql://ada:s3cr3t@db.example/books?user=z@y", "postgresql://db.example/books"),
        ("postgresql://ada:s3/cr@3t@db.example/books", UNKNOWN),
        ("postgresql://ada:s3cr3t@db.example:many/books", UNKNOWN),
        ("postgresql://ada:s3cr3t@[db.example/books", UNKNOWN),
    ],
)
def test_a_server_is_named_without_its_password(url: str, shown: str) -> None:
    assert place(url) == shown
    assert "s3" not in place(url)
