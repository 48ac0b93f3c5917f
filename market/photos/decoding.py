"""Photos: decoded completely, within bounds, in separate threads so that the loop continues."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from market.base.errors import Code
from market.base.slots import SlotBounds, Slots
from market.photos.containers import refused
from market.photos.photo import Photo

THREADS = 2  # decoding is all processor time, which the proxy needs as well
WAITING_MAX = 32  # with those being decoded: 32 of the largest files are 320 MB


class PhotoLimits(Struct, frozen=True):
    """The largest photo, as a file in bytes and decoded in pixels."""

    max_bytes: int = 10_000_000
    max_pixels: int = 25_000_000


class Photos:
    """Decodes photos, a bounded number at a time.

    Args:
        waiting_max: how many photos are in memory, with those being decoded.
    """

    def __init__(self, limits: PhotoLimits, waiting_max: int = WAITING_MAX) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="photos")
        self._slots = Slots(SlotBounds(total=THREADS, queue=waiting_max, queue_has_running=True))

    async def read(self, data: bytes) -> Photo:
        """Return the photo in a file.

        Raises:
            MarketError: `photo_too_large`, `photo_too_many_pixels`, `photo_not_jpeg_or_png`,
                `photo_truncated`, `photo_broken`, `photo_animated`, `photo_bit_depth`,
                `too_busy`.
        """
        if len(data) > self._limits.max_bytes:
            message = (
                f"The photo's file has {len(data):,} bytes; send it smaller, with "
                f"{self._limits.max_bytes:,} at most."
            )
            raise refused(Code.PHOTO_TOO_LARGE, message)
        async with self._slots.slot():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _photo, data, self._limits.max_pixels)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _photo(data: bytes, max_pixels: int) -> Photo:
    # In a thread, and once there is a photo: Pillow would be a twentieth of each start.
    from market.photos.picture import photo  # noqa: PLC0415

    return photo(data, max_pixels)
