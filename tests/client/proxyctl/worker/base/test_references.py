"""proxyctl.worker.base.references: each name has the meaning that every engine gives it."""

from support.base.cases import cases

from proxyctl.worker.base.references import is_allowed, parse

DIGEST = "sha256:" + "0a" * 32


@cases(
    ("text", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("team/model", "docker.io/team/model:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("ghcr.io/team/model:v1.2", "ghcr.io/team/model:v1.2"),
        ("GHCR.io/team/model", "ghcr.io/team/model:latest"),
        ("127.0.0.1:5000/own", "127.0.0.1:5000/own:latest"),
        ("localhost/own", "localhost/own:latest"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}"),
        (f"debian:12@{DIGEST}", f"docker.io/library/debian:12@{DIGEST}"),
    ],
)
def test_a_name_has_one_meaning(text: str, full: str) -> None:
    reference = parse(text)
    assert str(reference) == full
    assert str(parse(full)) == full


@cases(
    "text",
    [
        *("", " ", "-v", "--privileged", "a b", "debian:", "Debian/Own", "a//b", "../x"),
        *("a@sha256:12", "https://a/b", "a:b:c", "a" * 600, "a\n", "registry.example/../x"),
        f"a@md5:{'0' * 32}",
    ],
)
def test_a_text_that_is_no_name_is_no_reference(text: str) -> None:
    assert parse(text) is None


def test_an_owners_patterns_are_of_the_whole_name() -> None:
    assert is_allowed("debian:12", ["docker.io/library/*"])
    assert is_allowed("debian:12", ["debian:*"])
    assert is_allowed("x.example/a", ["*"])
    assert not is_allowed("evil.example/library/debian", ["docker.io/library/*"])
    assert not is_allowed("debian", [])
