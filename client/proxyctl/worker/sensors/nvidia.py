"""GPUs of NVIDIA, by its own library where the package `nvidia-ml-py` is there.

AMD's and others' are not read yet, and not lent.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.jobspec import gpus
from proxyctl.words import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxyctl.protocol.jobspec.payload import Resources

_MEBIBYTE: Final = 1 << 20
# A card that is sold as 24 GB reports 24,564 MiB, or less with error correction.
_SOLD_AS_SLACK: Final = 0.95


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        uuid: as its driver names it.
        name: the same.
        vram_mb: its memory, in MiB.
        driver: version of the driver.
        minor: number of its device node, `/dev/nvidia<minor>`.
        temperature: in degrees Celsius; None if it is not known.
        use: in percent; None if it is not known.
    """

    uuid: str
    name: str
    vram_mb: int
    driver: str
    minor: int
    temperature: float | None = None
    use: float | None = None

    def fits(self, resources: Resources) -> bool:
        """Return whether it is the model, and has the memory, that a job asks for."""
        wanted = resources.gpu_model
        if wanted and not gpus.fits(wanted, self.name):
            return False
        return self.vram_mb * _MEBIBYTE >= resources.vram_gb * 1e9 * _SOLD_AS_SLACK

    def as_fields(self) -> dict[str, Any]:
        """Return its fields for the daemon."""
        return {
            "uuid": self.uuid,
            "name": self.name,
            "vram_mb": self.vram_mb,
            "driver": self.driver,
        }


def read_gpus() -> list[Gpu]:
    """Return the GPUs that can be used now; none without a driver, or the package."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return list(_gpus(pynvml))
    except pynvml.NVMLError:  # the driver is just being replaced
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def cuda_version() -> str:
    """Return the CUDA version that the driver has, like `12.4`; empty where it is not known."""
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return f"{version // 1000}.{version % 1000 // 10}"


def _gpus(nvml: Any) -> Iterator[Gpu]:  # noqa: ANN401 - a module that need not be there
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    for index in range(nvml.nvmlDeviceGetCount()):
        # One card that has fallen off the bus does not hide the others.
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield Gpu(
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                name=_text(nvml.nvmlDeviceGetName(handle)),
                vram_mb=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MEBIBYTE,
                driver=driver,
                minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
                temperature=_temperature(nvml, handle),
                use=_use(nvml, handle),
            )


def _temperature(nvml: Any, handle: object) -> float | None:  # noqa: ANN401 - see above
    with suppress(nvml.NVMLError):
        return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return None


def _use(nvml: Any, handle: object) -> float | None:  # noqa: ANN401 - see above
    with suppress(nvml.NVMLError):
        return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return None


def _text(value: str | bytes) -> str:
    return plain_line(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
