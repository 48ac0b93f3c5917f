"""Parameters of tests with many variants: `make test` runs a few, `make test-both` all."""

from collections.abc import Iterable
from typing import Any

import pytest


def brief(values: Iterable[Any], count: int = 1, *, are_sets: bool = False) -> list[Any]:
    """Return the values for `parametrize`, and mark all but the first `count` of them `long`.

    Args:
        values: one per variant.
        count: of the variants in `make test`.
        are_sets: whether each value is a tuple of several arguments.
    """
    listed = list(values)
    rest = [each if are_sets else (each,) for each in listed[count:]]
    return [*listed[:count], *(pytest.param(*each, marks=pytest.mark.long) for each in rest)]
