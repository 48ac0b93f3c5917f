"""Many small cases in one test, which lists every case that fails.

A test of pytest's own costs some milliseconds in each process of the tests; thousands of cases need
far less.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def cases(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once with each value, as `parametrize` does, but as one test.

    Args:
        names: of the arguments, as `parametrize` takes them.
        values: one per case: a tuple if there are several names. The cases share the fixtures.

    Raises:
        ExceptionGroup: some cases have failed; each failure has a note with its arguments.
    """
    listed = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    sets = [
        dict(zip(listed, (each,) if len(listed) == 1 else each, strict=True)) for each in values
    ]
    assert sets, "no case"

    def merged(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[Exception] = []
            for arguments in sets:
                try:
                    test(**arguments, **fixtures)
                except Exception as error:  # noqa: BLE001 - all of them are raised below
                    error.add_note(f"the case {arguments!r}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(sets)} cases", failures)

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in listed]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return merged
