"""The ledger for tools with their own database, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tests.ledger_attempt import refund
from tests.postgres import Postgres, running_postgres
from tests.rig import RigFactory
from turnkeeper import RetryTool, ToolContext, ToolFailed, tool
from turnkeeper.ledger import (
    MAX_RECEIPT_BYTES,
    Effect,
    KeyConflict,
    LedgerMisused,
    create_ledger,
    forget,
    once_per_key,
)
from turnkeeper.testing import call, text

ROOT = Path(__file__).resolve().parents[1]
Result = TypeVar("Result")

INSERT = sa.text("INSERT INTO refunds VALUES (:key)")
RECORDS = sa.table("turnkeeper_effects", *map(sa.column, ("key", "receipt", "recorded_at")))


class Database:
    """A database with the ledger and a table `refunds`, whose rows are the effects."""

    def __init__(self, kind: str, url: str, async_url: str) -> None:
        self.kind = kind
        self.url = url
        self.async_url = async_url
        self._engines: list[sa.Engine] = []

    def engine(self, **options: Any) -> sa.Engine:
        """A new engine, as a process of its own would have."""
        engine = sa.create_engine(self.url, pool_size=50, **options)
        self._engines.append(engine)
        return engine

    def async_engine(self, **options: Any) -> AsyncEngine:
        """A new engine for asyncio."""
        return create_async_engine(self.async_url, pool_size=50, **options)

    def effects(self) -> int:
        """How often a refund was made."""
        with self._engines[0].begin() as connection:
            return int(connection.execute(sa.text("SELECT count(*) FROM refunds")).scalar_one())

    def records(self) -> int:
        """How many keys are on record."""
        with self._engines[0].begin() as connection:
            return int(
                connection.execute(sa.select(sa.func.count()).select_from(RECORDS)).scalar_one()
            )

    def close(self) -> None:
        """Close all connections."""
        for engine in self._engines:
            engine.dispose()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server for this module, a database for each test."""
    with running_postgres() as server:
        yield server


def make_postgres(postgres: Postgres) -> Database:
    """An empty database on the server."""
    address = postgres.new_database()
    return Database(
        "postgresql", f"postgresql+psycopg://{address}", f"postgresql+asyncpg://{address}"
    )


@pytest.fixture(params=["sqlite-wal", "sqlite-rollback", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Each kind of database, with both tables."""
    if request.param == "postgresql":
        made = make_postgres(request.getfixturevalue("postgres"))
    else:
        file = tmp_path / "orders.db"
        made = Database("sqlite", f"sqlite:///{file}", f"sqlite+aiosqlite:///{file}")
        mode = "WAL" if request.param == "sqlite-wal" else "DELETE"
        with made.engine().connect() as connection:
            connection.exec_driver_sql(f"PRAGMA journal_mode = {mode}")
    engine = made.engine()
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
    yield made
    made.close()


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """An engine on each kind of database."""
    return database.engine()


@pytest.fixture
def postgres_engine(postgres: Postgres) -> Iterator[sa.Engine]:
    """An engine on an empty PostgreSQL database."""
    made = make_postgres(postgres)
    yield made.engine()
    made.close()


def context(key: str = "k1", digest: str = "d1") -> ToolContext:
    """The context of a call."""
    return ToolContext(
        idempotency_key=key, arguments_digest=digest, tool="refund", workflow_id="run-1"
    )


def change(
    engine: sa.Engine,
    block: Callable[[sa.Connection, Effect], object],
    call: ToolContext | None = None,
    **options: Any,
) -> Any:
    """One attempt with this block; the receipt."""
    call = call or context()
    with engine.begin() as connection, once_per_key(connection, call, **options) as effect:
        block(connection, effect)
    return effect.receipt


def nothing(connection: sa.Connection, effect: Effect) -> None:
    """A block that does nothing."""


def insert(connection: sa.Connection, effect: Effect) -> None:
    """A block that makes a refund."""
    connection.execute(INSERT, {"key": "k1"})
    effect.receipt = {}


def insert_and_fail(connection: sa.Connection, effect: Effect) -> None:
    """A block that makes a refund and raises."""
    insert(connection, effect)
    raise OSError("down")


async def refund_async(engine: AsyncEngine, key: str, receipt: Any = None) -> Any:
    """The same as `refund`, with asyncio."""
    async with (
        engine.begin() as connection,
        once_per_key(connection, context(key), wait=60) as effect,
    ):
        if effect.is_new:
            await connection.execute(INSERT, {"key": key})
            effect.receipt = receipt or {"refund": key}
    return effect.receipt


def retried(attempt: Callable[[], Result]) -> Result:
    """What Temporal does with errors that are retried: up to 60 attempts."""
    for _ in range(60):
        try:
            return attempt()
        except (RetryTool, OperationalError):
            time.sleep(0.05)
    raise AssertionError("no attempt came to an end")


# --- one attempt after another ----------------------------------------------------------------


def test_a_second_attempt_is_told_the_receipt(engine: sa.Engine, database: Database) -> None:
    """The change is made once; `is_new` is False the second time, the receipt the same."""
    seen = []
    for number in range(2):
        with engine.begin() as connection, once_per_key(connection, context()) as effect:
            seen.append(effect.is_new)
            if effect.is_new:
                connection.execute(INSERT, {"key": "k1"})
                effect.receipt = {"refund": "r-1", "attempt": number, "sum": 1.0, "of": ["ä", None]}
        assert effect.receipt == {"refund": "r-1", "attempt": 0, "sum": 1.0, "of": ["ä", None]}
    assert seen == [True, False]
    assert (database.effects(), database.records()) == (1, 1)


async def test_asyncio_is_the_same(database: Database) -> None:
    """Over aiosqlite and asyncpg, and for an attempt that follows over the other driver."""
    engine = database.async_engine()
    assert await refund_async(engine, "k1") == {"refund": "k1"}
    assert await refund_async(engine, "k1", {"refund": "another"}) == {"refund": "k1"}
    assert refund(database.engine(), "k1") == {"refund": "k1"}
    await engine.dispose()
    assert database.effects() == 1


def test_other_arguments_are_a_conflict(engine: sa.Engine, database: Database) -> None:
    """The block does not begin; the error is one that is told to the model and not retried."""
    refund(engine, "k1")
    with pytest.raises(KeyConflict, match="on record with other arguments") as raised:
        change(engine, insert, context(digest="d2"))
    assert isinstance(raised.value, ToolFailed)
    assert database.effects() == 1


async def test_a_conflict_is_raised_with_asyncio_too(database: Database) -> None:
    """As it is without."""
    refund(database.engine(), "k1")
    engine = database.async_engine()
    with pytest.raises(KeyConflict):
        async with engine.begin() as connection, once_per_key(connection, context(digest="d2")):
            pass
    await engine.dispose()


def test_an_exception_undoes_the_change_and_its_record(
    engine: sa.Engine, database: Database
) -> None:
    """The next attempt is new."""
    with pytest.raises(OSError, match="down"):
        change(engine, insert_and_fail)
    assert (database.effects(), database.records()) == (0, 0)
    refund(engine, "k1")
    assert database.effects() == 1


def test_an_exception_that_is_caught_in_the_transaction_undoes_both(
    engine: sa.Engine, database: Database
) -> None:
    """The rest is committed, the block and its record are not: a savepoint is around them."""
    with engine.begin() as connection:
        with (
            pytest.raises(OSError, match="down"),
            once_per_key(connection, context()) as effect,
        ):
            insert_and_fail(connection, effect)
        connection.execute(INSERT, {"key": "the rest"})
    assert (database.effects(), database.records()) == (1, 0)


async def test_an_exception_undoes_both_with_asyncio(database: Database) -> None:
    """Also where it is caught and the rest is committed; a cancellation is one."""
    database.engine()
    engine = database.async_engine()

    async def failing(connection: AsyncConnection, error: type[BaseException]) -> None:
        async with once_per_key(connection, context()) as effect:
            await connection.execute(INSERT, {"key": "k1"})
            effect.receipt = {}
            raise error

    for error in (OSError, asyncio.CancelledError):
        async with engine.begin() as connection:
            with pytest.raises(error):
                await failing(connection, error)
    await engine.dispose()
    assert (database.effects(), database.records()) == (0, 0)


def test_a_transaction_that_is_rolled_back_later_leaves_nothing(
    engine: sa.Engine, database: Database
) -> None:
    """The record is part of the tool's transaction, whatever happens after the block."""
    with engine.connect() as connection:
        transaction = connection.begin()
        with once_per_key(connection, context()) as effect:
            connection.execute(INSERT, {"key": "k1"})
            effect.receipt = {}
        transaction.rollback()
    assert (database.effects(), database.records()) == (0, 0)


def test_two_keys_in_one_transaction(engine: sa.Engine, database: Database) -> None:
    """Both are recorded; if the second fails and nothing is caught, neither is."""

    def both(*, fail: bool) -> list[Any]:
        with engine.begin() as connection, once_per_key(connection, context("a")) as first:
            if first.is_new:
                connection.execute(INSERT, {"key": "a"})
                first.receipt = {"n": 1}
            with once_per_key(connection, context("b")) as second:
                if second.is_new:
                    connection.execute(INSERT, {"key": "b"})
                    second.receipt = {"n": 2}
                if fail:
                    raise OSError("down")
        return [first.receipt, second.receipt]

    with pytest.raises(OSError, match="down"):
        both(fail=True)
    assert (database.effects(), database.records()) == (0, 0)
    assert both(fail=False) == both(fail=False) == [{"n": 1}, {"n": 2}]
    assert (database.effects(), database.records()) == (2, 2)


def test_savepoints_in_and_around_the_block(engine: sa.Engine, database: Database) -> None:
    """A tool's own savepoints undo what is within them, and the record with what is around it."""
    with engine.begin() as connection:
        around = connection.begin_nested()
        with once_per_key(connection, context("undone")) as effect:
            connection.execute(INSERT, {"key": "undone"})
            effect.receipt = {}
        around.rollback()
        with once_per_key(connection, context("kept")) as effect:
            connection.execute(INSERT, {"key": "kept"})
            inside = connection.begin_nested()
            connection.execute(INSERT, {"key": "within"})
            inside.rollback()
            effect.receipt = {}
    assert (database.effects(), database.records()) == (1, 1)


@pytest.mark.parametrize(
    "key",
    ["k" * 100_000, "kéy ✓", "a\0b", "\ud800", "' OR 1=1; --", " ", "%s :key ?"],
    ids=["long", "unicode", "nul", "surrogate", "quotes", "blank", "marks"],
)
def test_any_text_is_a_key(engine: sa.Engine, database: Database, key: str) -> None:
    """Long and odd keys work, and are told apart from others that begin alike."""
    for other in (key, key, key + "x"):
        with engine.begin() as connection, once_per_key(connection, context(other)) as effect:
            if effect.is_new:
                effect.receipt = {"length": len(other)}
        assert effect.receipt == {"length": len(other)}
    assert database.records() == 2


def test_an_orm_session_gives_its_connection(engine: sa.Engine, database: Database) -> None:
    """`once_per_key(session.connection(), ctx)`: the session's changes are part of it."""
    from sqlalchemy.orm import Session

    for _ in range(2):
        with (
            Session(engine) as session,
            session.begin(),
            once_per_key(session.connection(), context()) as effect,
        ):
            if effect.is_new:
                session.execute(INSERT, {"key": "k1"})
                effect.receipt = {"refund": 1}
    assert database.effects() == 1


# --- mistakes ---------------------------------------------------------------------------------


def test_a_receipt_that_is_forgotten_is_an_error(engine: sa.Engine, database: Database) -> None:
    """And undoes the change: a second attempt would have nothing to tell."""
    with pytest.raises(LedgerMisused, match=r"set `effect\.receipt`"):
        change(engine, lambda connection, _: connection.execute(INSERT, {"key": "k1"}))
    assert (database.effects(), database.records()) == (0, 0)


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        ({"amount": Decimal("1.50")}, r"\$\.amount: Decimal is not a JSON value; give .* str"),
        ({"at": [datetime.now(UTC)]}, r"\$\.at\[0\]: datetime is not a JSON value"),
        ({"pair": (1, 2)}, "tuple is not a JSON value"),
        ({1: "a"}, "keys are strings"),
        ({"n": float("nan")}, "NaN"),
        ({"text": "\ud800"}, "surrogate"),
        ("x" * MAX_RECEIPT_BYTES, "64002 bytes, at most 64000"),
    ],
    ids=["decimal", "date", "tuple", "key", "nan", "surrogate", "size"],
)
def test_receipts_are_plain_json(
    engine: sa.Engine, database: Database, receipt: Any, why: str
) -> None:
    """What would come back as something else is refused with its place, and the change undone."""

    def block(connection: sa.Connection, effect: Effect) -> None:
        insert(connection, effect)
        effect.receipt = receipt

    with pytest.raises(LedgerMisused, match=why):
        change(engine, block)
    assert (database.effects(), database.records()) == (0, 0)


@pytest.mark.parametrize("receipt", [0, "", [], {}, False, {"nul": "a\0b"}])
def test_every_json_value_but_null_is_a_receipt(engine: sa.Engine, receipt: Any) -> None:
    """Empty ones too; null would be a receipt that was forgotten."""
    for _ in range(2):
        with engine.begin() as connection, once_per_key(connection, context()) as effect:
            if effect.is_new:
                effect.receipt = receipt
        assert effect.receipt == receipt


def test_the_receipt_of_an_earlier_attempt_cannot_be_replaced(engine: sa.Engine) -> None:
    """A tool that sets it outside of `if effect.is_new` is told so."""
    refund(engine, "k1")
    with pytest.raises(LedgerMisused, match="of an earlier attempt"):
        change(engine, insert)


def test_mistakes_are_not_retried() -> None:
    """They are TypeErrors, which the worker takes for a bug of the tool."""
    assert issubclass(LedgerMisused, TypeError)


def test_a_transaction_is_needed(engine: sa.Engine, database: Database) -> None:
    """A connection without one, or in AUTOCOMMIT, is refused before anything is done."""
    autocommit = database.engine(isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(LedgerMisused, match=r"engine\.begin\(\)"),
        once_per_key(connection, context()),
    ):
        pass
    with pytest.raises(LedgerMisused, match="AUTOCOMMIT"):
        change(autocommit, insert)
    assert database.records() == 0


async def test_a_transaction_is_needed_with_asyncio(database: Database) -> None:
    """The same."""
    engine = database.async_engine()
    async with engine.connect() as connection:
        with pytest.raises(LedgerMisused, match=r"engine\.begin\(\)"):
            async with once_per_key(connection, context()):
                pass
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(LedgerMisused, match="AUTOCOMMIT"):
        async with autocommit.begin() as connection, once_per_key(connection, context()):
            pass
    await engine.dispose()


def test_a_commit_within_the_block_is_found(engine: sa.Engine, database: Database) -> None:
    """It tears the change from its receipt: an error now, and for every later attempt."""

    def block(connection: sa.Connection, effect: Effect) -> None:
        insert(connection, effect)
        connection.commit()

    with pytest.raises(LedgerMisused, match="ended the transaction"):
        change(engine, block)
    with pytest.raises(LedgerMisused, match="without a receipt"):
        refund(engine, "k1")
    assert database.effects() == 1


def test_a_key_within_itself_is_an_error(engine: sa.Engine, database: Database) -> None:
    """The same key in its own block would wait for itself; it is refused and all is undone."""

    def block(connection: sa.Connection, effect: Effect) -> None:
        with once_per_key(connection, context()):
            insert(connection, effect)

    with pytest.raises(LedgerMisused, match="within itself"):
        change(engine, block)
    assert database.records() == 0


def test_a_context_without_a_key_is_refused(engine: sa.Engine) -> None:
    """Every such call would be taken for the same."""
    with pytest.raises(LedgerMisused, match="no idempotency_key"):
        change(engine, insert, ToolContext())


def test_other_things_than_connections_are_refused(engine: sa.Engine) -> None:
    """With the line to write instead."""
    ask: Any = once_per_key
    with pytest.raises(LedgerMisused, match=r"not sqlalchemy\.Engine: `with engine\.begin"):
        ask(engine, context())
    told = r"a SQLAlchemy connection in a transaction, not sqlite3\.Connection: "
    with pytest.raises(LedgerMisused, match=told):
        ask(sqlite3.connect(":memory:"), context())
    make: Any = create_ledger
    with pytest.raises(LedgerMisused, match="run_sync"):
        make(create_async_engine("sqlite+aiosqlite://"))


def test_other_databases_are_refused() -> None:
    """By name; nothing is sent to them."""
    connection: Any = sa.create_engine("sqlite://").connect()
    connection.dialect = types.SimpleNamespace(name="oracle")
    with pytest.raises(LedgerMisused, match="PostgreSQL and SQLite, not oracle"):
        create_ledger(connection)


# --- several at once --------------------------------------------------------------------------


def test_fifty_threads_make_one_effect(database: Database) -> None:
    """All begin together with one key; all get the one receipt."""
    engine = database.engine(max_overflow=0)
    together = threading.Barrier(50)

    def attempt(number: int) -> Any:
        with engine.begin() as connection:
            together.wait()
            with once_per_key(connection, context(), wait=60) as effect:
                if effect.is_new:
                    connection.execute(INSERT, {"key": "k1"})
                    effect.receipt = {"by": number}
        return effect.receipt

    with ThreadPoolExecutor(50) as threads:
        receipts = list(threads.map(attempt, range(50)))
    assert len({json.dumps(receipt) for receipt in receipts}) == 1
    assert (database.effects(), database.records()) == (1, 1)


async def test_fifty_tasks_make_one_effect(database: Database) -> None:
    """The same with asyncio, over aiosqlite and asyncpg."""
    database.engine()
    engine = database.async_engine()
    receipts = await asyncio.gather(*(refund_async(engine, "k1", {"by": n}) for n in range(50)))
    await engine.dispose()
    assert len({json.dumps(receipt) for receipt in receipts}) == 1
    assert (database.effects(), database.records()) == (1, 1)


def test_processes_make_one_effect(database: Database) -> None:
    """Three at once, as of three workers."""
    command = [sys.executable, "-m", "tests.ledger_attempt", database.url, "k1"]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    receipts = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 3
    assert len(receipts) == 1
    assert database.effects() == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_isolation_levels(postgres: Postgres, level: Any) -> None:
    """One effect at each; above READ COMMITTED some attempts collide and are tried again.

    Each reads before its key is recorded, which is what gives it an old snapshot.
    """
    database = make_postgres(postgres)
    engine = database.engine(isolation_level=level)
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
    together = threading.Barrier(20)
    errors: list[str] = []

    def attempt(number: int, *, first: bool) -> Any:
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT count(*) FROM refunds"))
            if first:
                together.wait()
            with once_per_key(connection, context()) as effect:
                if effect.is_new:
                    connection.execute(INSERT, {"key": "k1"})
                    effect.receipt = {"by": number}
        return effect.receipt

    def attempts(number: int) -> Any:
        try:
            return attempt(number, first=True)
        except (RetryTool, OperationalError) as error:
            errors.append(type(error).__name__)
        return retried(lambda: attempt(number, first=False))

    with ThreadPoolExecutor(20) as threads:
        receipts = list(threads.map(attempts, range(20)))
    assert len({json.dumps(receipt) for receipt in receipts}) == 1
    assert database.effects() == 1
    assert bool(errors) == (level != "READ COMMITTED")
    database.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait up to 10 s."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("lands", [True, False])
def test_a_second_attempt_waits_for_the_first(
    engine: sa.Engine, database: Database, lands: bool
) -> None:
    """If the first commits, its receipt is told; if it is rolled back, the second is new."""
    first = engine.connect()
    transaction = first.begin()
    with once_per_key(first, context()) as effect:
        first.execute(INSERT, {"key": "k1"})
        effect.receipt = {"by": "the first"}
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(refund, engine, "k1")
        time.sleep(0.3)
        assert not second.done()
        if lands:
            transaction.commit()
        else:
            transaction.rollback()
        receipt = second.result(timeout=60)
    first.close()
    assert (receipt == {"by": "the first"}) == lands
    assert database.effects() == 1


def held_for(engine: sa.Engine, seconds: float) -> float:
    """Hold a key in one transaction while another attempt waits for it; how long it did."""
    with engine.connect() as first:
        first.begin()
        with once_per_key(first, context()) as effect:
            effect.receipt = {}
        started = time.monotonic()
        with pytest.raises(RetryTool, match=r"held by another .* may yet take effect"):
            change(engine, insert, wait=seconds)
        return time.monotonic() - started


def test_the_wait_is_bounded(engine: sa.Engine, database: Database) -> None:
    """After `wait` seconds it is RetryTool, and the connection goes on."""
    assert 0.4 <= held_for(engine, 0.5) < 5
    assert held_for(engine, 0) < 2
    refund(engine, "k1")
    assert database.effects() == 1


async def test_the_wait_is_bounded_with_asyncio(database: Database) -> None:
    """The same."""
    engine = database.async_engine()
    async with engine.connect() as first, first.begin():
        async with once_per_key(first, context()) as effect:
            effect.receipt = {}
        with pytest.raises(RetryTool, match="may yet take effect"):
            async with engine.begin() as second, once_per_key(second, context(), wait=0.2):
                pass
    assert await refund_async(engine, "k1") == {}
    await engine.dispose()


def test_the_tools_own_wait_is_left_as_it_was(database: Database) -> None:
    """The bound is that of the key alone, not of the statements that follow."""
    engine = database.engine()
    sqlite = database.kind == "sqlite"
    ask = sa.text("PRAGMA busy_timeout" if sqlite else "SHOW lock_timeout")
    with engine.begin() as connection:
        connection.execute(
            sa.text("PRAGMA busy_timeout = 1234" if sqlite else "SET lock_timeout = '1234ms'")
        )
        for _ in range(2):
            with once_per_key(connection, context()) as effect:
                assert connection.execute(ask).scalar_one() == (1234 if sqlite else "1234ms")
                if effect.is_new:
                    effect.receipt = {}


def test_a_deadlock_is_retried(postgres_engine: sa.Engine) -> None:
    """Two attempts that record two keys in opposite order: one is told to try again."""
    create_ledger(postgres_engine)
    together = threading.Barrier(2)

    def attempt(keys: str) -> str:
        try:
            with postgres_engine.begin() as connection:
                for key in keys:
                    with once_per_key(connection, context(key)) as effect:
                        effect.receipt = {}
                    if key == keys[0]:
                        together.wait()
        except RetryTool as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(2) as threads:
        told = sorted(threads.map(attempt, ["ab", "ba"]))
    assert told[0].startswith("Another attempt of this call met this one")
    assert told[1] == "done"


def test_a_stale_snapshot_on_sqlite_is_retried(tmp_path: Path) -> None:
    """Read first, then record, with BEGIN before the read: SQLite cannot go on, hence RetryTool."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    sa.event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with sqlite3.connect(tmp_path / "orders.db") as driver:
        driver.execute("PRAGMA journal_mode = WAL")
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
    with engine.connect() as old:
        old.execute(sa.text("SELECT count(*) FROM refunds")).scalar_one()
        refund(engine, "k2")
        with pytest.raises(RetryTool), once_per_key(old, context(), wait=0.1):
            pass
    refund(engine, "k1")
    assert refund(engine, "k1") == refund(engine, "k2")
    engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3's `autocommit` is of Python 3.12")
def test_sqlite3s_own_transaction_control(tmp_path: Path) -> None:
    """With `autocommit=False` fifty threads make one effect; `autocommit=True` is refused."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = sa.create_engine(url, connect_args={"autocommit": False}, pool_size=50)
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda _: retried(lambda: refund(engine, "k1")), range(50)))
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM refunds")).scalar_one() == 1
    engine.dispose()
    without = sa.create_engine(url, connect_args={"autocommit": True})
    with pytest.raises(LedgerMisused, match="AUTOCOMMIT"):
        change(without, insert, context("k2"))
    without.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3's `autocommit` is of Python 3.12")
async def test_sqlite3s_own_transaction_control_with_asyncio(tmp_path: Path) -> None:
    """The same over aiosqlite."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}"
    engine = create_async_engine(url, connect_args={"autocommit": False}, pool_size=20)
    async with engine.begin() as connection:
        await connection.run_sync(create_ledger)
        await connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
    await asyncio.gather(*(refund_async(engine, "k1") for _ in range(20)))
    async with engine.begin() as connection:
        assert (await connection.execute(sa.text("SELECT count(*) FROM refunds"))).scalar_one() == 1
    await engine.dispose()
    without = create_async_engine(url, connect_args={"autocommit": True})
    with pytest.raises(LedgerMisused, match="AUTOCOMMIT"):
        await refund_async(without, "k2")
    await without.dispose()


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.parametrize(
    "place", ["before_commit", pytest.param("after_commit", marks=pytest.mark.long)]
)
def test_kill_9(engine: sa.Engine, database: Database, place: str) -> None:
    """Killed after the change and before the commit, or after it: one effect after the retry."""
    command = [sys.executable, "-m", "tests.ledger_attempt", database.url, "k1", place]
    killed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (killed.returncode, killed.stdout) == (-9, ""), killed.stderr
    assert database.effects() == (1 if place == "after_commit" else 0)
    again = subprocess.run(command[:-1], cwd=ROOT, check=True, capture_output=True, text=True)
    assert refund(engine, "k1") == json.loads(again.stdout)
    assert (database.effects(), database.records()) == (1, 1)


def test_a_commit_whose_answer_is_lost_is_found(database: Database) -> None:
    """The database has committed, the tool saw an error: the next attempt gets the receipt."""
    engine = database.engine()
    dialect: Any = engine.dialect
    commit = dialect.do_commit

    def unanswered(connection: Any) -> None:
        commit(connection)
        dialect.do_commit = commit
        raise OSError("the connection is lost")

    dialect.do_commit = unanswered
    with pytest.raises(OSError, match="lost"):
        refund(engine, "k1")
    assert database.effects() == 1
    assert refund(engine, "k1") == refund(engine, "k1")
    assert database.effects() == 1


KILL = sa.text("SELECT pg_terminate_backend(:pid)")
OWN = sa.text("SELECT pg_backend_pid()")


def test_a_connection_killed_by_the_server(postgres_engine: sa.Engine) -> None:
    """In the middle of the block: the database's own error is raised, and the retry is new."""
    create_ledger(postgres_engine)
    with postgres_engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))

    def block(connection: sa.Connection, effect: Effect) -> None:
        insert(connection, effect)
        pid = connection.execute(OWN).scalar_one()
        with postgres_engine.begin() as other:
            other.execute(KILL, {"pid": pid})

    with pytest.raises(OperationalError):
        change(postgres_engine, block)
    refund(postgres_engine, "k1")
    with postgres_engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM refunds")).scalar_one() == 1


async def test_a_connection_killed_by_the_server_with_asyncio(postgres: Postgres) -> None:
    """The same over asyncpg."""
    database = make_postgres(postgres)
    create_ledger(database.engine())
    engine = database.async_engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))

    async def attempt() -> None:
        async with engine.begin() as connection, once_per_key(connection, context()) as effect:
            await connection.execute(INSERT, {"key": "k1"})
            pid = (await connection.execute(OWN)).scalar_one()
            async with engine.begin() as other:
                await other.execute(KILL, {"pid": pid})
            effect.receipt = {}

    with pytest.raises(DBAPIError):
        await attempt()
    await refund_async(engine, "k1")
    await engine.dispose()
    assert database.effects() == 1
    database.close()


async def cancelled_while(started: asyncio.Event, attempt: Awaitable[Any]) -> None:
    """Cancel an attempt once it is at work."""
    task = asyncio.ensure_future(attempt)
    await asyncio.wait_for(started.wait(), 60)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_attempt_leaves_nothing(database: Database) -> None:
    """Cancelled in the block, or while it waits for the key: the next attempt is new."""
    database.engine()
    engine = database.async_engine()
    started = asyncio.Event()

    async def slow() -> None:
        async with engine.begin() as connection, once_per_key(connection, context()) as effect:
            await connection.execute(INSERT, {"key": "k1"})
            effect.receipt = {}
            started.set()
            await asyncio.sleep(60)

    async def waiting(connection: AsyncConnection) -> None:
        started.set()
        async with once_per_key(connection, context("held"), wait=1):
            raise AssertionError("it got the key")

    await cancelled_while(started, slow())
    assert (database.effects(), database.records()) == (0, 0)
    started.clear()
    async with engine.begin() as first, once_per_key(first, context("held")) as effect:
        effect.receipt = {}
        async with engine.connect() as second:
            await second.begin()
            await cancelled_while(started, waiting(second))
    await refund_async(engine, "k1")
    await engine.dispose()
    assert (database.effects(), database.records()) == (1, 2)


def test_a_busy_commit_on_sqlite_leaves_nothing(tmp_path: Path) -> None:
    """A reader holds the file in rollback mode: the commit fails and the retry is new."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = sa.create_engine(url, connect_args={"timeout": 0.1})
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))
        connection.execute(INSERT, {"key": "an earlier one"})
    count = sa.text("SELECT count(*) FROM refunds")
    with engine.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.execute(count).scalar_one()
        with pytest.raises(OperationalError, match="locked"):
            refund(engine, "k1")
        assert reader.execute(count).scalar_one() == 1
    refund(engine, "k1")
    with engine.begin() as connection:
        assert connection.execute(count).scalar_one() == 2
    engine.dispose()


async def test_a_tool_whose_first_attempt_dies_after_its_commit(
    rig: RigFactory, database: Database
) -> None:
    """Through Temporal: the second attempt tells the model the first one's receipt."""
    engine = database.engine()
    attempts: list[int] = []

    @tool(effect="idempotent", retries=2)
    def issue_refund(order: str, amount: Decimal, ctx: ToolContext) -> Any:
        """Refund an order."""
        attempts.append(ctx.attempt)
        with engine.begin() as connection, once_per_key(connection, ctx) as effect:
            if effect.is_new:
                connection.execute(INSERT, {"key": order})
                effect.receipt = {"refund": f"r-{ctx.attempt}", "amount": str(amount)}
        if ctx.attempt == 1:
            raise OSError("the answer is lost")
        return effect.receipt

    script: list[Any] = [
        call("issue_refund", {"order": "o-1", "amount": "12.50"}),
        lambda x: text(x.last_results[0].text),
    ]
    async with rig(script, tools=[issue_refund]) as r:
        result = await r.run()
    assert attempts == [1, 2]
    assert json.loads(result.answer or "") == {"refund": "r-1", "amount": "12.50"}
    assert (database.effects(), database.records()) == (1, 1)


# --- the table --------------------------------------------------------------------------------


def test_what_is_on_record(engine: sa.Engine) -> None:
    """The row says which tool of which run, when by the database's clock, and the receipt."""
    with engine.begin() as connection, once_per_key(connection, context()) as effect:
        effect.receipt = {"refund": 1}
    with engine.begin() as connection:
        row = connection.execute(sa.text("SELECT * FROM turnkeeper_effects")).one()._asdict()
    recorded = row.pop("recorded_at")
    if isinstance(recorded, str):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", recorded)
        recorded = datetime.fromisoformat(recorded)
    assert abs(datetime.now(UTC) - recorded) < timedelta(seconds=30)
    assert row == {
        "key": "k1",
        "arguments_digest": "d1",
        "tool": "refund",
        "workflow_id": "run-1",
        "receipt": '{"refund": 1}',
    }


def test_the_table_is_made_once_by_any_number_of_starts(
    tmp_path: Path, postgres_engine: sa.Engine
) -> None:
    """Twenty at once on an empty database, at the strictest level too, and once more later."""
    serializable = postgres_engine.execution_options(isolation_level="SERIALIZABLE")
    sqlite = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}", pool_size=20)
    for engine, schema in ((sqlite, None), (postgres_engine, None), (serializable, "own")):
        if schema:
            with engine.begin() as connection:
                connection.execute(sa.schema.CreateSchema(schema))
        together = threading.Barrier(20)

        def start(
            engine: sa.Engine = engine,
            schema: str | None = schema,
            together: threading.Barrier = together,
        ) -> None:
            together.wait()
            create_ledger(engine, schema=schema)

        with ThreadPoolExecutor(20) as threads:
            for done in [threads.submit(start) for _ in range(20)]:
                done.result()
        create_ledger(engine, schema=schema)
        assert sa.inspect(engine).has_table("turnkeeper_effects", schema=schema)
    sqlite.dispose()


async def test_the_table_is_made_with_asyncio(tmp_path: Path) -> None:
    """As SQLAlchemy has it: `run_sync`, for `forget` too."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(create_ledger)
        assert await connection.run_sync(forget, timedelta(days=1)) == 0
    await engine.dispose()


def test_a_schema_of_its_own(postgres_engine: sa.Engine) -> None:
    """The same key is new in another schema."""
    with postgres_engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema("own"))
        create_ledger(connection, schema="own")
        create_ledger(connection)
    for schema in ("own", None):
        with (
            postgres_engine.begin() as connection,
            once_per_key(connection, context(), schema=schema) as effect,
        ):
            assert effect.is_new
            effect.receipt = {}
    with postgres_engine.begin() as connection:
        connection.execute(sa.text("UPDATE own.turnkeeper_effects SET recorded_at = '2020-01-01'"))
        assert forget(connection, timedelta(days=1)) == 0
        assert forget(connection, timedelta(days=1), schema="own") == 1


def test_a_role_that_may_not_create_tables(postgres_engine: sa.Engine) -> None:
    """Where an administrator has made the table, `create_ledger` has nothing to do."""
    create_ledger(postgres_engine)
    with postgres_engine.begin() as connection:
        connection.execute(sa.text("DROP ROLE IF EXISTS worker"))
        connection.execute(sa.text("CREATE ROLE worker"))
        connection.execute(sa.text("GRANT SELECT, INSERT, UPDATE ON turnkeeper_effects TO worker"))
        connection.execute(sa.text("SET LOCAL ROLE worker"))
        create_ledger(connection)
        with once_per_key(connection, context()) as effect:
            effect.receipt = {}


def test_a_missing_table_is_named(engine: sa.Engine, database: Database) -> None:
    """With what to call; it is not retried."""
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE turnkeeper_effects"))
    with pytest.raises(LedgerMisused, match="no table turnkeeper_effects: call create_ledger"):
        refund(engine, "k1")


async def test_a_missing_table_is_named_with_asyncio(database: Database) -> None:
    """The same over aiosqlite and asyncpg."""
    engine = database.async_engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("DROP TABLE turnkeeper_effects"))
    with pytest.raises(LedgerMisused, match="call create_ledger"):
        await refund_async(engine, "k1")
    await engine.dispose()


def test_forget(engine: sa.Engine) -> None:
    """Records older than the age are deleted and counted, by the database's clock."""
    for key in ("old", "new"):
        with engine.begin() as connection, once_per_key(connection, context(key)) as effect:
            effect.receipt = {}
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE turnkeeper_effects SET recorded_at = :then WHERE key = 'old'"),
            {"then": past(engine, timedelta(days=91))},
        )
        assert forget(connection, timedelta(days=92)) == 0
        assert forget(connection, timedelta(days=90)) == 1
        assert forget(connection, timedelta(days=90)) == 0
        with pytest.raises(LedgerMisused, match="positive age"):
            forget(connection, timedelta(0))
    for key, is_new in (("old", True), ("new", False)):
        with engine.begin() as connection, once_per_key(connection, context(key)) as effect:
            assert effect.is_new == is_new
            if is_new:
                effect.receipt = {}


def past(engine: sa.Engine, age: timedelta) -> Any:
    """A time as the database holds it."""
    then = datetime.now(UTC) - age
    return then if engine.dialect.name == "postgresql" else then.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.long
def test_the_ledger_brings_no_orm() -> None:
    """A synchronous tool's process begins with its imports; the ORM would be a third of them."""
    code = "import sys, turnkeeper.ledger; sys.exit('sqlalchemy.orm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
