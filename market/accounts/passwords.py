"""Passwords: argon2id, hashed one at a time in a thread of its own, so that the loop continues."""

import asyncio
import base64
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from market.base.slots import SlotBounds, Slots

# Each needs the memory of a hash, 64 MiB. Networks take turns, so a guessing network delays each
# other client by one hash.
THREADS = 1
NICENESS = 10  # the loop goes before hashing where processors are short
WAITING_MAX = 400
WAITING_MAX_PER_CLIENT = 20  # a whole IPv6 /48 has 16 times that, 320: never the whole queue
# The defaults of argon2-cffi: 16 bytes of salt, 32 of hash.
SALT_BYTES = 16
HASH_BYTES = 32

_Answer = TypeVar("_Answer")


class Passwords:
    """Hashes and verifies passwords, one at a time.

    Args:
        time_cost: passes of argon2id over its memory.
        memory_kib: that memory, in KiB.
    """

    def __init__(self, *, time_cost: int, memory_kib: int) -> None:
        self._hasher = PasswordHasher(
            time_cost=time_cost,
            memory_cost=memory_kib,
            parallelism=1,
            hash_len=HASH_BYTES,
            salt_len=SALT_BYTES,
            type=Type.ID,
        )
        self._thread = ThreadPoolExecutor(
            THREADS, thread_name_prefix="argon2", initializer=_be_nice
        )
        self._slots = Slots(
            SlotBounds(
                total=THREADS,
                queue=WAITING_MAX,
                queue_per_caller=WAITING_MAX_PER_CLIENT,
                queue_has_running=True,
            )
        )
        self._decoy = _decoy(time_cost, memory_kib)

    async def hash(self, password: str, *, client: str = "") -> str:
        """Return the encoded hash of a password, with a new salt.

        Args:
            password: the password to hash.
            client: the caller's network, which may have only a part of the queue; "" for none.

        Raises:
            MarketError: `too_busy`.
        """
        return await self._in_thread(client, lambda: self._hasher.hash(password))

    async def verify(self, password: str, encoded: str | None, *, client: str = "") -> bool:
        """Return whether a password matches a hash. For None, return False after the same time.

        Args:
            password: the password to verify.
            encoded: the hash.
            client: as for `hash`.

        Raises:
            MarketError: `too_busy`.
        """
        if encoded is None:
            await self._in_thread(client, lambda: self._matches(password, self._decoy))
            return False
        return await self._in_thread(client, lambda: self._matches(password, encoded))

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _matches(self, password: str, encoded: str) -> bool:
        try:
            return self._hasher.verify(encoded, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _in_thread(self, client: str, work: Callable[[], _Answer]) -> _Answer:
        # Without a client it is this process itself, which no bound of one caller holds back.
        async with self._slots.slot(*((client,) if client else ())):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _be_nice() -> None:
    """Lower the priority of the calling thread, where that is permitted."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _decoy(time_cost: int, memory_kib: int) -> str:
    """Return the hash for `verify` without a user: it costs the same time as a real hash.

    No password was hashed to make it, so that a start costs nothing: verifying computes a hash from
    the parameters and the salt, and only then compares.
    """
    salt, hashed = (_unpadded(secrets.token_bytes(size)) for size in (SALT_BYTES, HASH_BYTES))
    return f"$argon2id$v=19$m={memory_kib},t={time_cost},p=1${salt}${hashed}"


def _unpadded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")
