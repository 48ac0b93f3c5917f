"""Undocumented behaviour of aiosqlite that the store relies on is unchanged."""

import sqlite3
import threading

import pytest
from support.base.releases import assert_compared, assert_has

from storage.engines.aiosqlite_compat import COMPARED_VERSION, Connection
from storage.engines.errors import UnavailableError

SHIM = "storage/engines/aiosqlite_compat.py"


def test_the_installed_release_is_the_one_that_was_compared() -> None:
    assert_compared("aiosqlite", COMPARED_VERSION, SHIM)


async def test_a_function_runs_whole_in_the_thread_of_the_connection() -> None:
    connection = await Connection(lambda: sqlite3.connect(":memory:"), iter_chunk_size=64)
    assert_has("aiosqlite", SHIM, connection, "_connection", "_running", "_execute")

    def thread(raw: sqlite3.Connection) -> int:
        raw.execute("CREATE TABLE t (n)")
        raw.execute("INSERT INTO t VALUES (7)")
        assert raw.execute("SELECT n FROM t").fetchone() == (7,)
        return threading.get_ident()

    assert await connection.call(thread) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await connection.call(lambda raw: 1 // 0)
    await connection.close()
    with pytest.raises(UnavailableError, match="closed"):
        await connection.call(lambda raw: None)
