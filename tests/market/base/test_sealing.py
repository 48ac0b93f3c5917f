"""Sealed content opens only with the same key and for the same purpose."""

from support.base.cases import cases

from market.base.sealing import Sealing, derived

SECRET = b"k" * 40
CONTENT = b"the link with a secret"


def test_a_sealed_text_can_be_opened_only_by_a_process_with_the_key() -> None:
    sealed = Sealing(SECRET, b"outbox").close(CONTENT)
    assert CONTENT not in sealed.encode()
    assert Sealing(SECRET, b"outbox").open(sealed) == CONTENT


def test_the_same_content_is_sealed_differently_each_time() -> None:
    sealing = Sealing(SECRET, b"outbox")
    assert sealing.close(CONTENT) != sealing.close(CONTENT)


@cases(("secret", "purpose"), [(b"other" * 8, b"outbox"), (SECRET, b"idempotency")])
def test_another_key_or_purpose_opens_nothing(secret: bytes, purpose: bytes) -> None:
    sealed = Sealing(SECRET, b"outbox").close(CONTENT)
    assert Sealing(secret, purpose).open(sealed) is None


def test_a_text_that_was_changed_or_never_sealed_opens_to_nothing() -> None:
    sealing = Sealing(SECRET, b"outbox")
    sealed = sealing.close(CONTENT)
    middle = len(sealed) // 2
    changed = sealed[:middle] + ("A" if sealed[middle] != "A" else "B") + sealed[middle + 1 :]
    assert [sealing.open(each) for each in (changed, sealed[:-8], "", "not sealed")] == [None] * 4


def test_keys_of_different_purposes_have_nothing_in_common() -> None:
    first, second = derived(SECRET, b"one"), derived(SECRET, b"two")
    assert len(first) == len(second) == 32
    assert first == derived(SECRET, b"one") != second
