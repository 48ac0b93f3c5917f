"""A plugin for `make test`: imports every file of tests and looks for no test in it.

The import leaves behind the code that pytest has made of a file. Without the 13,000 tests and their
parameters that takes half of the processor time.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem() -> list[pytest.Item]:
    """Collect no tests from the files of helpers."""
    return []
