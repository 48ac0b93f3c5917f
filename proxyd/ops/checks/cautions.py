"""All warnings about settings that are right, for `proxyd config check` and for a start."""

from collections.abc import Iterator

from config.settings import Settings
from proxyd.ops.base.signing_key import exposed_files
from proxyd.ops.checks.accountability import unanswerable
from proxyd.ops.checks.cores import too_few_cores
from proxyd.ops.checks.openness import open_settings


def cautions(settings: Settings) -> Iterator[str]:
    """Yield a line for each valid setting that the operator hardly wants."""
    yield from exposed_files(settings)
    yield from open_settings(settings)
    yield from unanswerable(settings)
    if warning := too_few_cores(settings.proxy.processes):
        yield warning
