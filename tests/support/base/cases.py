"""Many small cases in one test, which lists every case that fails.

A test of pytest's own costs some milliseconds in each process of the tests; thousands of cases need
far less.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def cases(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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

    def merged(test: Callable[..., Any]) -> Callable[..., Any]:
        failures = _Failures(len(sets))

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            with failures:
                for arguments in sets:
                    with failures.of(arguments):
                        test(**arguments, **fixtures)

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            with failures:
                for arguments in sets:
                    with failures.of(arguments):
                        await test(**arguments, **fixtures)

        chosen = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in listed]
        chosen.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return chosen

    return merged


class _Failures:
    """The failures of one run of a test, raised together at its end."""

    def __init__(self, cases: int) -> None:
        self._cases = cases
        self._failed: list[Exception] = []

    def __enter__(self) -> None:
        self._failed = []

    def __exit__(self, *_: object) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            raise ExceptionGroup(f"{len(failed)} of {self._cases} cases", failed)

    @contextmanager
    def of(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Keep the failure of a case."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised with the others
            error.add_note(f"the case {arguments!r}")
            self._failed.append(error)
