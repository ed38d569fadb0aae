"""The ledger of a tool's own database: an effect and its record commit together, or not at all.

    @tool(effect="idempotent")
    def issue_refund(order: str, amount: Decimal, ctx: ToolContext) -> Any:
        with engine.begin() as connection, once_per_key(connection, ctx) as effect:
            if effect.is_new:
                connection.execute(...)               # the change itself
                effect.receipt = {"refund": "r-1"}    # what a second attempt is told
        return effect.receipt

With an `AsyncConnection` it is the same under `async with`. Make the table once, at start:
`create_ledger(engine)`, or `await async_connection.run_sync(create_ledger)`.

SQLAlchemy (`pip install turnkeeper[sql]`) on PostgreSQL, at any isolation level, and on SQLite, in
any journal mode. What the block does elsewhere, an e-mail say, is not covered: it may happen again.

An attempt that stands still (a stopped process, a lost network) keeps its key until the database
ends its transaction. On PostgreSQL set `idle_in_transaction_session_timeout` below the tool's
timeout, so that the next attempt gets its turn.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import timedelta
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, overload

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from turnkeeper.entries import check_json
from turnkeeper.errors import AdmissionError, RetryTool, ToolFailed, TurnkeeperError
from turnkeeper.text import well_formed
from turnkeeper.tools import ToolContext

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = [
    "MAX_RECEIPT_BYTES",
    "Effect",
    "KeyConflict",
    "LedgerMisused",
    "create_ledger",
    "forget",
    "once_per_key",
]

MAX_RECEIPT_BYTES = 64_000
_TABLE = "turnkeeper_effects"
_MAX_KEY = 200
_LOCK = 0x7475726E6B656570
"""Of PostgreSQL's advisory locks the one under which the table is made."""
_AUTOCOMMIT = "once_per_key needs a transaction; this connection is in AUTOCOMMIT"
_TIME = "%Y-%m-%dT%H:%M:%fZ"

# What the database answers to an attempt that met another one.
_LOCKED = {"55P03", "57014"}  # lock_not_available; query_canceled, by a statement_timeout
_COLLIDED = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_SQLITE_LOCKED = {5, 6}  # SQLITE_BUSY, SQLITE_LOCKED
_NO_TABLE = "42P01"


class KeyConflict(ToolFailed):
    """Raised when the key is on record with other arguments; nothing was done, a retry is useless.

    It is told to the model like any `ToolFailed`.
    """


class LedgerMisused(TurnkeeperError, TypeError):
    """Raised for a mistake in the tool's code, or for a missing table; the transaction is undone.

    A TypeError, hence not retried: the next attempt would make the same mistake.
    """


class Effect:
    """What `once_per_key` gives to its block."""

    def __init__(self, *, is_new: bool, receipt: Any = None) -> None:
        self._is_new = is_new
        self._receipt = receipt

    @property
    def is_new(self) -> bool:
        """Whether this attempt makes the change; if not, an earlier one has committed it."""
        return self._is_new

    @property
    def receipt(self) -> Any:
        """What the attempt that made the change has told of it: plain JSON, never null."""
        return self._receipt

    @receipt.setter
    def receipt(self, value: Any) -> None:
        if not self._is_new:
            raise LedgerMisused("the receipt is that of an earlier attempt: ask `effect.is_new`")
        self._receipt = value


@overload
def once_per_key(
    connection: sa.Connection, ctx: ToolContext, *, wait: float = ..., schema: str | None = ...
) -> AbstractContextManager[Effect]: ...
@overload
def once_per_key(
    connection: AsyncConnection, ctx: ToolContext, *, wait: float = ..., schema: str | None = ...
) -> AbstractAsyncContextManager[Effect]: ...


def once_per_key(
    connection: sa.Connection | AsyncConnection,
    ctx: ToolContext,
    *,
    wait: float = 10,
    schema: str | None = None,
) -> AbstractContextManager[Effect] | AbstractAsyncContextManager[Effect]:
    """Make a change in this transaction once per `ctx.idempotency_key`, whatever dies in between.

    The key is recorded first, so that of concurrent attempts one makes the change and the others
    wait for its receipt, or take their turn if it was rolled back. Use it before the transaction's
    first query: at REPEATABLE READ and above, and on SQLite, an older snapshot would collide with
    the attempt that was waited for. An exception in the block undoes the block and its record,
    also if the rest of the transaction is committed.

    Receipts are plain JSON of at most `MAX_RECEIPT_BYTES`. Decimals, dates and models are refused,
    not guessed at: give `str(amount)` or `refund.model_dump(mode="json")`.

    Args:
        connection: in a transaction that commits after the block; of a session `.connection()`.
        ctx: the tool's context.
        wait: seconds to wait for another attempt (on SQLite: for any other writer), at most.
        schema: where the table is, if not where the database looks first.

    Raises:
        KeyConflict: the key is on record with other arguments.
        RetryTool: another attempt is at work, or was recorded in this moment; raised before the
            block, so nothing has happened. The same within the block or at the commit is
            SQLAlchemy's OperationalError: declare the tool `idempotent` to have it tried again.
        LedgerMisused: no transaction, no key, no table; a receipt that is missing or no JSON.
    """
    if isinstance(connection, sa.Connection):
        return _block(_Record(connection, ctx, wait, schema))
    # Here, since it brings SQLAlchemy's ORM: a third of the start of a synchronous tool's process.
    from sqlalchemy.ext.asyncio import AsyncConnection

    if isinstance(connection, AsyncConnection):
        return _async_block(connection, ctx, wait, schema)
    raise LedgerMisused(
        f"once_per_key takes a SQLAlchemy connection in a transaction, not {_kind(connection)}: "
        "`with engine.begin() as connection`, or of a session `session.connection()`"
    )


def create_ledger(bind: sa.Engine | sa.Connection, *, schema: str | None = None) -> None:
    """Make the table `turnkeeper_effects` unless it is there; any number of processes may at once.

    With a connection, its transaction is yours to commit. With asyncio:
    `async with engine.begin() as connection: await connection.run_sync(create_ledger)`.

    Raises:
        LedgerMisused: neither an engine nor a connection, or of another database.
    """
    if isinstance(bind, sa.Engine):
        with bind.begin() as connection:
            create_ledger(connection, schema=schema)
        return
    if not isinstance(bind, sa.Connection):
        raise LedgerMisused(
            f"create_ledger takes a SQLAlchemy engine or connection, not {_kind(bind)}; "
            "with asyncio: `await connection.run_sync(create_ledger)`"
        )
    _dialect(bind)
    table = _table(schema)
    if bind.dialect.name == "postgresql":
        # A role that may not create tables is refused even where IF NOT EXISTS has nothing to do.
        if sa.inspect(bind).has_table(_TABLE, schema=schema):
            return
        # IF NOT EXISTS alone is not safe: two at once collide in the catalogue.
        bind.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    bind.execute(sa.schema.CreateTable(table, if_not_exists=True))


def forget(connection: sa.Connection, older_than: timedelta, *, schema: str | None = None) -> int:
    """Delete the records older than this; the number of those deleted.

    A key that is forgotten is new again: an attempt that comes later makes its change a second
    time. So keep records for longer than any run waits, is retried, reset, or started again with
    the same `request_key`; months cost little.

    Raises:
        LedgerMisused: not a positive age; another database.
    """
    if older_than <= timedelta(0):
        raise LedgerMisused("forget takes a positive age: a key must outlive its run")
    table = _table(schema)
    recorded: sa.ColumnElement[Any] = table.c.recorded_at
    limit: sa.ColumnElement[Any]
    if _dialect(connection) == "postgresql":
        limit = sa.func.now() - older_than
    else:
        limit = sa.func.strftime(_TIME, "now", f"-{older_than.total_seconds():.3f} seconds")
    return connection.execute(table.delete().where(recorded < limit)).rowcount


class _Record:
    """The record of one key in one transaction."""

    def __init__(
        self, connection: sa.Connection, ctx: ToolContext, wait: float, schema: str | None
    ) -> None:
        if not ctx.idempotency_key:
            # Every call without one would be taken for the same call.
            raise LedgerMisused("the context has no idempotency_key")
        if not 0 <= wait <= 86_400:
            raise LedgerMisused(f"wait is 0 to 86400 seconds, not {wait}")
        self._connection = connection
        self._table = _table(schema)
        self._key = _stored_key(ctx.idempotency_key)
        self._ctx = ctx
        self._wait = wait
        self._savepoint: sa.NestedTransaction | None = None

    def claim(self) -> Effect:
        """Record the key, or find it on record."""
        _check_transaction(self._connection)
        try:
            with _patience(self._connection, self._wait):
                found = self._insert_or_read()
        except DBAPIError as error:
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from error
        if self._savepoint is not None:
            return Effect(is_new=True)
        if found is None:
            raise RetryTool("The record of this call was deleted while it was being read.")
        if found.arguments_digest != self._ctx.arguments_digest:
            raise KeyConflict(
                "The key of this call is on record with other arguments. What was done then "
                "stands; nothing was done now."
            )
        if found.receipt is None:
            raise LedgerMisused(
                "the key is on record without a receipt: its block is not finished (once_per_key "
                "within itself), or has committed the transaction from inside"
            )
        return Effect(is_new=False, receipt=json.loads(found.receipt))

    def _insert_or_read(self) -> sa.Row[Any, Any] | None:
        if self._connection.dialect.name == "sqlite":
            _begin(self._connection, self._table)
        # The savepoint undoes the record together with the change, even where the caller catches
        # the exception and commits the rest: a key without its change would answer for ever.
        savepoint = self._connection.begin_nested()
        try:
            # SQLAlchemy keeps no count for an INSERT unless asked to.
            options = {"preserve_rowcount": True}
            inserted = self._connection.execute(self._insert(), execution_options=options)
            if inserted.rowcount == 1:
                self._savepoint = savepoint
                return None
            columns = self._table.c
            found = self._connection.execute(
                sa.select(columns.arguments_digest, columns.receipt).where(columns.key == self._key)
            ).one_or_none()
        except BaseException:
            _undo(savepoint)
            raise
        savepoint.commit()
        return found

    def finish(self, effect: Effect) -> None:
        """Add the receipt to the record."""
        if self._savepoint is None:
            return
        if not self._savepoint.is_active:
            raise LedgerMisused("the block of once_per_key ended the transaction it is part of")
        text = _receipt_text(effect.receipt)
        row = self._table.c.key == self._key
        self._connection.execute(self._table.update().where(row).values(receipt=text))
        self._savepoint.commit()
        # What the second attempt will read, and no object that the block may still change.
        effect.receipt = json.loads(text)

    def undo(self) -> None:
        """Undo the block and its record, whatever state the connection is in."""
        if self._savepoint is not None:
            _undo(self._savepoint)

    def _insert(self) -> sa.Insert:
        values = {
            "key": self._key,
            "arguments_digest": self._ctx.arguments_digest,
            "tool": _plain(self._ctx.tool),
            "workflow_id": _plain(self._ctx.workflow_id),
        }
        # `inline`: SQLAlchemy must not add a RETURNING.
        if self._connection.dialect.name == "postgresql":
            now: sa.ColumnElement[Any] = sa.func.now()
            insert = postgresql.insert(self._table).values(**values, recorded_at=now)
            return insert.on_conflict_do_nothing(index_elements=["key"]).inline()
        now = sa.func.strftime(_TIME, "now")
        lite = sqlite.insert(self._table).values(**values, recorded_at=now)
        return lite.on_conflict_do_nothing(index_elements=["key"]).inline()

    def _explained(self, error: DBAPIError) -> Exception | None:
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        code = getattr(error.orig, "sqlite_errorcode", None)
        if state in _COLLIDED:
            return RetryTool(
                "Another attempt of this call met this one in the database; this one did nothing."
            )
        if state in _LOCKED or (code is not None and code & 0xFF in _SQLITE_LOCKED):
            return RetryTool(
                f"The database was held by another attempt or writer for {self._wait:g} s. This "
                "attempt did nothing; an earlier one may yet take effect."
            )
        if state == _NO_TABLE or "no such table" in str(error.orig):
            return LedgerMisused(f"there is no table {self._table}: call create_ledger at start")
        return None


@contextmanager
def _block(record: _Record) -> Generator[Effect, None, None]:
    effect = record.claim()
    try:
        yield effect
        record.finish(effect)
    except BaseException:
        record.undo()
        raise


@asynccontextmanager
async def _async_block(
    connection: AsyncConnection, ctx: ToolContext, wait: float, schema: str | None
) -> AsyncGenerator[Effect, None]:
    record, effect = await connection.run_sync(_claimed, ctx, wait, schema)
    try:
        yield effect
        await connection.run_sync(lambda _: record.finish(effect))
    except BaseException:
        await connection.run_sync(lambda _: record.undo())
        raise


def _claimed(
    connection: sa.Connection, ctx: ToolContext, wait: float, schema: str | None
) -> tuple[_Record, Effect]:
    record = _Record(connection, ctx, wait, schema)
    return record, record.claim()


def _kind(value: object) -> str:
    """Its type with the package: many have a `Connection`."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def _undo(savepoint: sa.NestedTransaction) -> None:
    connection = savepoint.connection
    try:
        if savepoint.is_active:
            savepoint.rollback()
    except Exception as error:  # noqa: BLE001  the block's own exception is the one to tell
        # Whatever still stands in the transaction must never be committed.
        connection.invalidate(error)


def _dialect(connection: sa.Connection) -> str:
    name = connection.dialect.name
    if name not in ("postgresql", "sqlite"):
        raise LedgerMisused(f"the ledger knows PostgreSQL and SQLite, not {name}")
    return name


def _check_transaction(connection: sa.Connection) -> None:
    name = _dialect(connection)
    if not connection.in_transaction():
        raise LedgerMisused("once_per_key needs a transaction: `with engine.begin() as connection`")
    driver = connection.connection.dbapi_connection
    assert driver is not None
    # SQLite: see `_begin`. A driver that begins none may be SQLAlchemy's recipe with a BEGIN event.
    if name != "sqlite" and connection.dialect.detect_autocommit_setting(driver):
        raise LedgerMisused(_AUTOCOMMIT)


def _begin(connection: sa.Connection, table: sa.Table) -> None:
    # sqlite3 begins a transaction before a DELETE, but not before a SAVEPOINT, whose RELEASE would
    # then commit. Although it deletes nothing it also takes the lock of writers, or waits for it.
    connection.execute(table.delete().where(sa.false()))
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        raise LedgerMisused(_AUTOCOMMIT)


@contextmanager
def _patience(connection: sa.Connection, seconds: float) -> Generator[None, None, None]:
    """Bound the wait for locks, and set it back to what the tool's author chose."""
    # 0 would mean for ever.
    milliseconds = max(1, round(seconds * 1000))
    if connection.dialect.name == "sqlite":
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")
        return
    setting = sa.literal("lock_timeout")
    before = connection.execute(sa.select(sa.func.current_setting(setting))).scalar_one()
    change = sa.select(sa.func.set_config(setting, sa.bindparam("value"), sa.true()))
    connection.execute(change, {"value": f"{milliseconds}ms"})
    yield
    connection.execute(change, {"value": before})


def _receipt_text(receipt: Any) -> str:
    if receipt is None:
        raise LedgerMisused(
            "set `effect.receipt` in the block: a second attempt has nothing else to tell"
        )
    try:
        check_json(receipt)
    except AdmissionError as error:
        raise LedgerMisused(
            f"the receipt cannot be stored: {error}; give plain JSON, such as str(amount)"
        ) from None
    # In ASCII, so that it fits a database of any encoding.
    text = json.dumps(receipt)
    if len(text) > MAX_RECEIPT_BYTES:
        raise LedgerMisused(f"the receipt has {len(text)} bytes, at most {MAX_RECEIPT_BYTES}")
    return text


def _stored_key(key: str) -> str:
    """The key, or its digest where a database could not index or hold it."""
    if len(key) <= _MAX_KEY and key.isascii() and "\0" not in key:
        return key
    return "sha256:" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(text: str) -> str:
    return well_formed(text.replace("\0", ""))[:1_000]


@lru_cache
def _table(schema: str | None) -> sa.Table:
    return sa.Table(
        _TABLE,
        sa.MetaData(),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("arguments_digest", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("workflow_id", sa.Text, nullable=False),
        sa.Column("receipt", sa.Text),
        # SQLite has no such type, and would give back a time without its zone: ISO 8601 in UTC.
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite"),
            nullable=False,
        ),
        schema=schema,
    )
