"""Fixtures that every room's tests may use."""

# First: an import of a data-path module before this one would leave the whole data path
# interpreted.
import proxyd  # noqa: F401, I001 - see above

import gc
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from support.base.brief import examples
from support.database import postgres, sqlite
from support.database.kept import KeptDatabase, KeptDatabases
from support.database.kept_sqlite import KeptStores
from support.daemons import forked, forked_client, process
from support.base.clock import Clock
from support.market.market import Market
from support.daemons.service import Service, running_in

from market.money.audit import audit_ledger
from proxyd.wiring.bounds import USUAL, Bounds
from storage.engines.open import open_store
from storage.engines.place import SQLITE
from storage.engines.sqlite import SqliteStore
from storage.engines.store import Store

pytest_plugins = [
    "support.plugins.processes",  # first: others import it
    "support.plugins.both_engines",  # its work is before that of the former
    "support.plugins.failures",
    "support.plugins.leftovers",
    "support.plugins.origins",
    "support.plugins.time_limit",
]

# Every run has the same examples, and a busy machine has its time for each: the defaults are random
# examples and a fifth of a second.
settings.register_profile(
    "tests",
    max_examples=examples(100),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable]:
    """Run every test on the loop that the daemon runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor ever among them.

    They are hundreds of thousands of objects that stay, and every process of the tests has them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)  # at the default of 700 it is a twentieth of the tests' time


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Have several processes of the tests share the processes that fork daemons and agents."""
    if not session.config.getoption("processes"):
        return (yield)
    with forked.shared({forked.DAEMONS: (), forked_client.MODULE: forked_client.PATHS}):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def forking() -> Iterator[None]:
    """Have daemons and agents in processes of their own forked from one that has imported all."""
    with process.forking(), forked_client.forking():
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running PostgreSQL server."""
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template() -> str:
    """The name of a database of the present schema on each server, for others to be copies of."""
    return postgres.TEMPLATE


@pytest.fixture(scope="session")
def kept_databases(postgres_server: str) -> Iterator[KeptDatabases]:
    """The PostgreSQL databases of this process that stay from test to test."""
    databases = KeptDatabases(postgres_server, postgres.TEMPLATE)
    yield databases
    databases.close()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine in turn."""
    return str(request.param)


@pytest.fixture
async def empty_url(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[str]:
    """The URL of an empty database, on each engine in turn."""
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path}/proxyd.db"
        return
    server: str = request.getfixturevalue("postgres_server")
    async with postgres.database(server, f"test_{uuid.uuid4().hex}") as url:
        yield url


@pytest.fixture
async def kept_database(request: pytest.FixtureRequest) -> AsyncIterator[KeptDatabase]:
    """A PostgreSQL database of the present schema without data, and a connection that audits it."""
    databases: KeptDatabases = request.getfixturevalue("kept_databases")
    async with databases.one() as database:
        yield database


@pytest.fixture
def store_url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without data, on each engine in turn; its schema may be there."""
    if engine == "sqlite":
        return sqlite.database(tmp_path)
    database: KeptDatabase = request.getfixturevalue("kept_database")
    return database.url


@pytest.fixture
async def empty_postgres(postgres_server: str) -> AsyncIterator[str]:
    """The URL of a PostgreSQL database without a table."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        yield url


@pytest.fixture(scope="session")
def kept_stores() -> Iterator[KeptStores]:
    """The SQLite stores of this process that stay from test to test."""
    stores = KeptStores()
    yield stores
    stores.close()


@pytest.fixture
def own_url(engine: str, request: pytest.FixtureRequest) -> str | None:
    """The URL of the test's database; None if the test does not know where it is."""
    if engine == "sqlite" and not {"store_url", "tmp_path"} & set(request.fixturenames):
        return None
    return str(request.getfixturevalue("store_url"))


@pytest.fixture
async def store(own_url: str | None, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An open store with an up-to-date schema, on each engine in turn.

    One connection reads from SQLite: each one parses the whole schema, which takes longer than most
    tests. A daemon has more. The store stays for later tests, unless this one knows its file.
    """
    opened: Store
    if own_url is None:
        stores: KeptStores = request.getfixturevalue("kept_stores")
        async with stores.one() as opened:
            yield opened
        return
    if own_url.startswith(SQLITE):
        opened = await SqliteStore.open(own_url.removeprefix(SQLITE), create=True, readers=1)
    else:
        opened = await open_store(own_url)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    """A clock that the test sets."""
    return Clock()


@pytest.fixture
async def market(
    store: Store, engine: str, clock: Clock, request: pytest.FixtureRequest
) -> AsyncIterator[Market]:
    """The marketplace without a network, on each engine; its ledger must agree after the test."""
    made = Market(store, clock)
    yield made
    made.passwords.close()
    if engine == "sqlite":
        report = await audit_ledger(store)
    else:
        databases: KeptDatabases = request.getfixturevalue("kept_databases")
        database: KeptDatabase = request.getfixturevalue("kept_database")
        report = await databases.run(database.audit())
    assert report.passed, report


@pytest.fixture
def bounds() -> Bounds:
    """The bounds of a daemon; `bounded` gives a test others."""
    return USUAL


@pytest.fixture
async def service(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Service]:
    """A running daemon on SQLite; its ledger must agree when the test is over."""
    async with running_in(tmp_path, bounds=bounds) as running:
        yield running
        await running.assert_audit()
