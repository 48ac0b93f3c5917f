"""Write to a shared SQLite database: `python -m tests.support.database.shared_writer`.

Its arguments: the database's path, the number of units to write, and the number of concurrent ones.
It prints "here", opens the database after a line, prints "open", writes after another line, and
prints how many units were written.
"""

import asyncio
import sys

from storage.engines.open import open_store
from storage.engines.store import Transaction


async def insert(tx: Transaction) -> None:
    await tx.run(
        "INSERT INTO schema_versions (version, name) SELECT MIN(version) - 1, 'x' "
        "FROM schema_versions"
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def write(path: str, count: int, width: int) -> None:
    say("here")
    sys.stdin.readline()
    store = await open_store(f"sqlite:///{path}", is_shared=True)
    say("open")
    await asyncio.to_thread(sys.stdin.readline)
    slots, written = asyncio.Semaphore(width), 0

    async def one() -> None:
        nonlocal written
        async with slots:
            await store.write(insert)
            written += 1

    await asyncio.gather(*(one() for _ in range(count)))
    await store.close()
    say(str(written))


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
