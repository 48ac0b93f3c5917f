from pathlib import Path

import pytest

from proxyctl.tokens import TOKEN_VARIABLE, TokenError, read_token


def test_a_token_comes_from_a_file_or_the_environment_or_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(_: str) -> str:
        return "typed"

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token(None, prompt) == "typed"
    monkeypatch.setenv(TOKEN_VARIABLE, "exported")
    assert read_token(None, prompt) == "exported"
    (tmp_path / "token").write_text("stored\n")
    assert read_token(str(tmp_path / "token"), prompt) == "stored"
    (tmp_path / "token").write_text("\n")
    for name in ("token", "missing"):
        with pytest.raises(TokenError):
            read_token(str(tmp_path / name), prompt)
