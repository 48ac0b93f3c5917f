"""Differences between two readings of the settings, and the settings with some of them applied."""

from collections.abc import Iterator

import msgspec

from config.settings import Settings, reloadable


def changes(old: Settings, new: Settings) -> frozenset[str]:
    """Return the settings that differ, each as `section.key`."""
    return frozenset(_changes(old, new))


def with_reloadable(old: Settings, new: Settings) -> Settings:
    """Return the old settings with those of the new ones that change while the daemon runs."""
    names = changes(old, new) & reloadable()
    merged = {
        section: msgspec.structs.replace(
            getattr(old, section),
            **{
                name.partition(".")[2]: getattr(getattr(new, section), name.partition(".")[2])
                for name in names
                if name.startswith(f"{section}.")
            },
        )
        for section in {name.partition(".")[0] for name in names}
    }
    return msgspec.structs.replace(old, **merged)


def _changes(old: Settings, new: Settings) -> Iterator[str]:
    for section in msgspec.structs.fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        for field in msgspec.structs.fields(section.type):
            if getattr(before, field.name) != getattr(after, field.name):
                yield f"{section.name}.{field.name}"
