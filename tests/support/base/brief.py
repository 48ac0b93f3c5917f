"""Sizes of tests with many variants: `make test` runs a few variants, `make test-both` all."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

# `make test` tries one example of this number.
_EXAMPLES_PART = 6


def examples(count: int) -> int:
    """Return the number of examples of a property test: all with `PROXYD_EXAMPLES=all`.

    The examples are the same in every run, so a sixth of them misses in `make test` only the cases
    that `make test-both` finds.
    """
    return count if os.environ.get("PROXYD_EXAMPLES") == "all" else -(-count // _EXAMPLES_PART)


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
