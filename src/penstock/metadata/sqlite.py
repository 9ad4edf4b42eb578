"""The store of one machine: SQLite from the standard library, in one thread of its own.

SQLite calls block, and a connection belongs to one thread: so one worker thread owns the
connection and runs calls in the order they came, which also makes every call a consistent
snapshot. A commit is synced before the caller hears of it (WAL, synchronous=FULL).

Watchers hold no queue: each remembers a revision and reads the history table from there when a
commit wakes it. A watcher that is slow costs nothing, one that is too slow gets Compacted.

That only one process uses a data folder is seen to by ``node``, not here.

Changing the schema: raise SCHEMA_VERSION, add the step from the version before to MIGRATIONS, keep
a test that opens a database of each older version. A database of a newer version is refused.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.metadata.store import (
    CHANGES_PER_TXN_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Change,
    ChangeKind,
    Compacted,
    Entry,
    SingleWrites,
    StoreUnusable,
)
from penstock.model.errors import DiskFull, InvalidRequest, Throttled, VersionConflict

T = TypeVar("T")

APPLICATION_ID = 0x50454E53  # "PENS", so that another program's database is not taken for ours
SCHEMA_VERSION = 1
HISTORY_REVISIONS_MAX = 1_024  # a watcher in this process is a wake-up behind, not a thousand
WATCH_CHANGES_MAX = 4 * CHANGES_PER_TXN_MAX  # one read of history; holds several whole revisions
CALLS_MAX = 10_000  # calls waiting for the thread; more would only time out in the queue
BUSY_SECONDS_MAX = 5.0

# Keys are blobs: SQLite compares those byte by byte, so a prefix is a range. A change without a
# value is a delete. ``head`` has one row: the newest revision and the newest one compacted away.
SCHEMA = (
    (
        "CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
        " create_revision INTEGER NOT NULL) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE change (revision INTEGER NOT NULL, key BLOB NOT NULL, value BLOB,"
        " PRIMARY KEY (revision, key)) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL,"
        " compacted INTEGER NOT NULL)"
    ),
    "INSERT INTO head VALUES (1, 0, 0)",
)
MIGRATIONS: dict[int, Sequence[str]] = {0: SCHEMA}

# After one of these the file or the device under it cannot be trusted: a failed sync may have
# dropped pages that were reported written. The store refuses everything until a restart.
FATAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The half-open range of encoded keys that start with ``prefix``. The byte 0xFF never occurs
    in UTF-8, so it lies behind every key, and the last byte of a prefix can always be raised."""
    start = prefix.encode()
    if not start:
        return b"", b"\xff"
    return start, start[:-1] + bytes((start[-1] + 1,))


class _Database:
    """The blocking half: everything here runs in the store's one thread."""

    def __init__(self, path: Path, *, history_revisions_max: int) -> None:
        self._path = path
        self._history_revisions_max = history_revisions_max
        self._failure: str | None = None
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, isolation_level=None, timeout=BUSY_SECONDS_MAX, cached_statements=32
            )
        except sqlite3.Error as exc:
            raise StoreUnusable(f"{self._path}: cannot be opened: {exc}") from exc
        try:
            self._prepare(connection)
        except sqlite3.Error as exc:
            connection.close()
            raise StoreUnusable(f"{self._path}: not a usable metadata database: {exc}") from exc
        except StoreUnusable:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Looked at before anything is written: somebody else's file must stay as it was.
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (table_count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and (application_id or version or table_count):
            raise StoreUnusable(f"{self._path}: is the database of another program")
        if version > SCHEMA_VERSION:
            raise StoreUnusable(
                f"{self._path}: was written by a newer Penstock (schema {version}, this one knows"
                f" {SCHEMA_VERSION})"
            )
        if version == 0 and table_count:
            raise StoreUnusable(f"{self._path}: has tables but no schema version")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusable(f"{self._path}: the file system does not support WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise StoreUnusable(f"{self._path}: damaged: {str(finding).splitlines()[-1]}")
        for step in range(version, SCHEMA_VERSION):
            with _transaction(connection):
                for statement in MIGRATIONS[step]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {step + 1}")
        if connection.execute("SELECT revision FROM head").fetchone() is None:
            raise StoreUnusable(f"{self._path}: damaged: the revision is missing")

    def guarded(self, work: Callable[[], T]) -> T:
        """Run one call; turn what SQLite says into what the rest of Penstock understands."""
        if self._failure is not None:
            raise StoreUnusable(self._failure)
        try:
            return work()
        except sqlite3.Error as exc:
            # The low byte is the class of an extended code. Errors made by the module itself,
            # such as a closed connection, carry none.
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise DiskFull(f"{self._path}: no space left for metadata") from exc
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Throttled(f"{self._path}: locked by another process") from exc
            if code in FATAL:
                self._failure = f"{self._path}: {exc}; restart to check the file"
                raise StoreUnusable(self._failure) from exc
            raise StoreUnusable(f"{self._path}: {exc}") from exc

    def close(self) -> None:
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            pass  # the WAL is read at the next start; closing must not fail over tidiness
        self._connection.close()

    def get(self, key: str) -> Entry | None:
        row = self._connection.execute(
            "SELECT value, version, create_revision FROM entry WHERE key = ?", (key.encode(),)
        ).fetchone()
        return None if row is None else Entry(key, row[0], row[1], row[2])

    def list(self, prefix: str) -> tuple[Sequence[Entry], int]:
        with _transaction(self._connection, "BEGIN"):
            rows = self._connection.execute(
                "SELECT key, value, version, create_revision FROM entry"
                " WHERE key >= ? AND key < ? ORDER BY key",
                prefix_range(prefix),
            ).fetchall()
            revision, _ = self._head()
        return [Entry(key.decode(), value, v, c) for key, value, v, c in rows], revision

    def txn(
        self,
        compare: Sequence[tuple[str, int]],
        puts: Sequence[tuple[str, bytes]],
        deletes: Sequence[str],
    ) -> int:
        with _transaction(self._connection):
            for key, version in compare:
                actual = self._version(key)
                if actual != version:
                    raise VersionConflict(f"{key} is at version {actual}, not {version}.")
            present = [key for key in deletes if self._version(key)]
            revision, compacted = self._head()
            if not puts and not present:
                return revision
            revision += 1
            for key, value in puts:
                self._put(key, value, revision)
            for key in present:
                self._delete(key, revision)
            self._advance(revision, compacted)
        return revision

    def read_changes(self, prefix: str, from_revision: int) -> tuple[Sequence[Change], int]:
        """Changes under the prefix from a revision on, and the revision to ask for next."""
        with _transaction(self._connection, "BEGIN"):
            head, compacted = self._head()
            if from_revision <= compacted:
                raise Compacted(compacted + 1)
            rows = self._connection.execute(
                "SELECT revision, key, value FROM change"
                " WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision, key LIMIT ?",
                (from_revision, *prefix_range(prefix), WATCH_CHANGES_MAX),
            ).fetchall()
        next_revision = max(head + 1, from_revision)
        if len(rows) == WATCH_CHANGES_MAX:
            # The last revision may have been cut by the limit: it is read whole the next time.
            next_revision = rows[-1][0]
            rows = [row for row in rows if row[0] < next_revision]
            assert rows, "a read of history holds more than one transaction"
        changes = [
            Change(ChangeKind.DELETE, key.decode(), b"", revision)
            if value is None
            else Change(ChangeKind.PUT, key.decode(), value, revision)
            for revision, key, value in rows
        ]
        return changes, next_revision

    def _head(self) -> tuple[int, int]:
        revision, compacted = self._connection.execute(
            "SELECT revision, compacted FROM head"
        ).fetchone()
        return revision, compacted

    def _version(self, key: str) -> int:
        row = self._connection.execute(
            "SELECT version FROM entry WHERE key = ?", (key.encode(),)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _put(self, key: str, value: bytes, revision: int) -> None:
        self._connection.execute(
            "INSERT INTO entry VALUES (?1, ?2, ?3, ?3)"
            " ON CONFLICT (key) DO UPDATE SET value = ?2, version = ?3",
            (key.encode(), value, revision),
        )
        self._connection.execute(
            "INSERT INTO change VALUES (?, ?, ?)", (revision, key.encode(), value)
        )

    def _delete(self, key: str, revision: int) -> None:
        self._connection.execute("DELETE FROM entry WHERE key = ?", (key.encode(),))
        self._connection.execute("INSERT INTO change VALUES (?, ?, NULL)", (revision, key.encode()))

    def _advance(self, revision: int, compacted: int) -> None:
        # A quarter more than promised may stand there, so that not every commit has to clean up.
        if revision - compacted > self._history_revisions_max * 5 // 4:
            compacted = revision - self._history_revisions_max
            self._connection.execute("DELETE FROM change WHERE revision <= ?", (compacted,))
        self._connection.execute(
            "UPDATE head SET revision = ?, compacted = ?", (revision, compacted)
        )


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors have rolled it back already
            connection.execute("ROLLBACK")
        raise


class SqliteStore(SingleWrites):
    """Implements ``store.Store``. Made by ``open``."""

    def __init__(
        self, database: _Database, thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._database = database
        self._thread = thread
        self._loop = loop
        self._call_count = 0
        self._is_closed = False
        self._wakes: set[asyncio.Event] = set()  # one per open watch

    @classmethod
    async def open(
        cls, path: Path, *, history_revisions_max: int = HISTORY_REVISIONS_MAX
    ) -> "SqliteStore":
        """Creates the file when there is none. Raises StoreUnusable."""
        assert history_revisions_max >= 1
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        try:
            database = await loop.run_in_executor(
                thread, partial(_Database, path, history_revisions_max=history_revisions_max)
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(database, thread, loop)

    async def get(self, key: str) -> Entry | None:
        return await self._call(partial(self._database.get, key))

    async def list(self, prefix: str) -> tuple[Sequence[Entry], int]:
        return await self._call(partial(self._database.list, prefix))

    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
    ) -> int:
        _check(puts, deletes)
        return await self._call(partial(self._commit, compare, puts, deletes))

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while not self._is_closed:
                # Cleared before the read: a commit behind it sets the event again.
                wake.clear()
                changes, from_revision = await self._call(
                    partial(self._database.read_changes, prefix, from_revision)
                )
                if changes:
                    yield changes
                else:
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def close(self) -> None:
        """Calls already waiting are still carried out; later ones are refused."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake_watches()
        await self._loop.run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=True)  # that was its last call: it only has to end

    async def _call(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        if self._call_count == CALLS_MAX:
            raise Throttled("Too many metadata calls are waiting.")
        self._call_count += 1
        try:
            return await self._loop.run_in_executor(self._thread, self._database.guarded, work)
        finally:
            self._call_count -= 1

    def _commit(
        self,
        compare: Sequence[tuple[str, int]],
        puts: Sequence[tuple[str, bytes]],
        deletes: Sequence[str],
    ) -> int:
        revision = self._database.txn(compare, puts, deletes)
        # From here and not from the caller, which may have been cancelled meanwhile.
        self._loop.call_soon_threadsafe(self._wake_watches)
        return revision

    def _wake_watches(self) -> None:
        for wake in self._wakes:
            wake.set()


def _check(puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]) -> None:
    keys = [*(key for key, _ in puts), *deletes]
    assert len(keys) == len(set(keys)), "a key changes once in a transaction"
    if len(keys) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(f"A transaction changes at most {CHANGES_PER_TXN_MAX} keys.")
    for key in keys:
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidRequest(f"A metadata key has at most {KEY_BYTES_MAX} bytes.")
    for key, value in puts:
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidRequest(f"{key}: a metadata value has at most {VALUE_BYTES_MAX} bytes.")
