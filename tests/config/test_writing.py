"""Settings that are written are read again with the same values."""

from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from config.load import load
from config.settings import Settings
from config.writing import as_toml


def read_again(settings: Settings, folder: Path) -> Settings:
    path = folder / "written.toml"
    path.write_text(as_toml(settings), encoding="utf-8")
    path.chmod(0o600)
    return load(path, {})


def changed(section: str, **values: object) -> Settings:
    usual = Settings()
    return structs.replace(usual, **{section: structs.replace(getattr(usual, section), **values)})


def test_each_kind_of_value_is_read_again(tmp_path: Path) -> None:
    for settings in (
        Settings(),
        changed("api", console=False, app_url="https://a.example", trusted_proxies=("::1/128",)),
        changed("proxy", passwordless_ports=(1, 2), public_host="a.example"),
        changed("proxy", passwordless_ports=()),
        changed("exits", price_per_gb_floor_usd={"de": Decimal("0.20"), "any": Decimal(3)}),
        changed("market", fee_percent=Decimal("12.5"), gpu_rates_usd={"A 100": Decimal(1)}),
        changed("assistant", rewards={"giving": 3}, confidence_min=0.25),
        changed("limits", dial_seconds=2.5, idle_seconds=30.0),
    ):
        assert read_again(settings, tmp_path) == settings


def test_any_text_is_read_again(tmp_path: Path) -> None:
    @given(text=st.text(st.characters(exclude_categories=["Cs"])))
    def check(text: str) -> None:
        settings = changed("mail", password=text, sender=text)
        assert read_again(settings, tmp_path) == settings

    for text in ("@", "@@", "@/etc/passwd", "\x7f", "\x00\r\n", '"\\'):
        assert read_again(changed("mail", password=text), tmp_path).mail.password == text
    check()
