"""All warnings about settings that are right, for `proxyd config check` and for a start."""

from collections.abc import Iterator

from config.settings import Settings
from proxyd.ops.accountability import unanswerable
from proxyd.ops.cores import too_few_cores
from proxyd.ops.openness import open_settings
from proxyd.ops.signing_key import exposed_files


def cautions(settings: Settings) -> Iterator[str]:
    """Yield a line for each valid setting that the operator hardly wants."""
    yield from exposed_files(settings)
    yield from open_settings(settings)
    yield from unanswerable(settings)
    if warning := too_few_cores(settings.proxy.processes):
        yield warning
