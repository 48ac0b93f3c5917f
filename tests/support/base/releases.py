"""Private parts of libraries: the release they were read in is the one that is installed."""

from importlib.metadata import version


def assert_compared(library: str, compared: str, shim: str) -> None:
    """Fail when another release is installed than the one whose source was compared."""
    installed = version(library)
    assert installed == compared, (
        f"{library} {installed} is installed; {shim} relies on private names of {library} as they "
        f"were in {compared}. Compare the sources, adapt {shim}, and name the release there."
    )


def assert_has(library: str, shim: str, owner: object, *names: str) -> None:
    """Fail, by name, when a library no longer has the names that a shim relies on."""
    kind = owner if isinstance(owner, type) else type(owner)
    gone = [name for name in names if not hasattr(owner, name)]
    assert not gone, (
        f"{library} {version(library)}: {kind.__name__} has no {', '.join(gone)} any more; "
        f"{shim} relies on that."
    )
