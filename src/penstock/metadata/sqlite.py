"""The metadata store of a single machine, in SQLite.

Calls of SQLite block, so one worker thread owns the connection and runs all calls in order. A
commit is synced before the caller gets the reply (WAL, synchronous=FULL). The package ``node``
ensures that only one process uses a data folder.

A watch remembers its next revision, and after each commit reads the table of changes from this
revision on. A watch that is too slow raises Compacted. Leases are in a separate table; their end
times are in memory. One task ends the leases that are not kept alive.

To change the schema, increment SCHEMA_VERSION, add the step from the previous version to
MIGRATIONS, and add a test that opens a database of that version. Newer versions are rejected."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.metadata.cache import abandon
from penstock.metadata.store import (
    CHANGES_PER_TXN_MAX,
    Change,
    ChangeKind,
    Compacted,
    Entry,
    LeaseGone,
    Store,
    StoreUnusable,
    Txn,
    check_changes,
    check_ttl,
    find_conflict,
    prefix_range,
)
from penstock.model.errors import DiskFull, PenstockError, Throttled

T = TypeVar("T")

APPLICATION_ID = 0x50454E53  # "PENS", to detect databases of other programs
SCHEMA_VERSION = 2
HISTORY_REVISIONS_MAX = 1_024  # far more than a watch in this process is ever behind
WATCH_CHANGES_MAX = 4 * CHANGES_PER_TXN_MAX  # of one read, enough for several whole revisions
CALLS_MAX = 10_000  # calls waiting for the thread; more would only time out in the queue
BUSY_SECONDS_MAX = 5.0
LEASES_MAX = 10_000  # a cluster takes one per node; each is a few hundred bytes
ENDING_RETRY_SECONDS = 1.0  # after an error, such as a full disk

# Keys are blobs: SQLite compares blobs by byte, so a prefix is a range. A change without a value
# is a delete. ``head`` has one row: the newest revision and the newest compacted one.
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
# Lease ids are never reused, hence AUTOINCREMENT. A lease has few entries.
LEASES = (
    "ALTER TABLE entry ADD COLUMN lease INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX entry_lease ON entry (lease) WHERE lease <> 0",
    "CREATE TABLE lease (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL)",
)
MIGRATIONS: dict[int, Sequence[str]] = {0: SCHEMA, 1: LEASES}

# After one of these errors the file or the device cannot be trusted: a failed sync may have dropped
# pages that were reported as written. The store refuses all calls until a restart.
FATAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

log = logging.getLogger(__name__)


class _Database:
    """The blocking calls of SQLite, which all run in one thread."""

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
            raise StoreUnusable(f"{self._path} cannot be opened: {exc}") from exc
        try:
            self._prepare(connection)
        except sqlite3.Error as exc:
            connection.close()
            raise StoreUnusable(f"{self._path} is not a usable metadata database: {exc}") from exc
        except StoreUnusable:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Checked before anything is written: a file of another program must not change.
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (table_count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and (application_id or version or table_count):
            raise StoreUnusable(f"{self._path}: the database belongs to another program")
        if version > SCHEMA_VERSION:
            raise StoreUnusable(
                f"{self._path} has schema {version} of a newer version of Penstock; this version"
                f" can read up to schema {SCHEMA_VERSION}"
            )
        if version == 0 and table_count:
            raise StoreUnusable(f"{self._path}: the database has tables but no schema version")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusable(f"{self._path}: the file system does not support WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise StoreUnusable(f"{self._path} is damaged: {str(finding).splitlines()[-1]}")
        for step in range(version, SCHEMA_VERSION):
            with _transaction(connection):
                for statement in MIGRATIONS[step]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {step + 1}")
        if connection.execute("SELECT revision FROM head").fetchone() is None:
            raise StoreUnusable(f"{self._path} is damaged: the table 'head' is empty")

    def guarded(self, work: Callable[..., T], *args: Any) -> T:
        if self._failure is not None:
            raise StoreUnusable(self._failure)
        try:
            return work(*args)
        except sqlite3.Error as exc:
            # The low byte is the class of an extended code. Errors of the Python module, such as a
            # closed connection, have no code.
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise DiskFull("there is no space left on the disk for metadata") from exc
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Throttled("the metadata database is locked by another process") from exc
            if code in FATAL:
                self._failure = f"{self._path}: {exc}; restart to check the file"
                raise StoreUnusable(self._failure) from exc
            raise StoreUnusable(f"{self._path}: {exc}") from exc

    def close(self) -> None:
        # If it fails, the WAL is read at the next start.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def get(self, key: str) -> Entry | None:
        row = self._connection.execute(
            "SELECT value, version, create_revision FROM entry WHERE key = ?", (key.encode(),)
        ).fetchone()
        return None if row is None else Entry(key, row[0], row[1], row[2])

    def list(self, prefix: str, min_revision: int) -> tuple[Sequence[Entry], int]:
        with _transaction(self._connection, "BEGIN"):
            rows = self._connection.execute(
                "SELECT key, value, version, create_revision FROM entry"
                " WHERE key >= ? AND key < ? ORDER BY key",
                prefix_range(prefix),
            ).fetchall()
            revision, _ = self._head()
        if revision < min_revision:
            raise StoreUnusable(
                f"{self._path} is at revision {revision}, but {min_revision} was seen before: the"
                " file was replaced by an older copy"
            )
        return [Entry(key.decode(), value, v, c) for key, value, v, c in rows], revision

    def txn(self, txn: Txn) -> int:
        with _transaction(self._connection):
            if (conflict := find_conflict(txn, self._revisions)) is not None:
                raise conflict
            if txn.lease and txn.puts:
                query = "SELECT 1 FROM lease WHERE id = ?"
                if self._connection.execute(query, (txn.lease,)).fetchone() is None:
                    raise LeaseGone(txn.lease)
            present = [key for key in txn.deletes if self._revisions(key)[0]]
            revision, compacted = self._head()
            if not txn.puts and not present:
                return revision
            revision += 1
            for key, value in txn.puts:
                self._connection.execute(
                    "INSERT INTO entry VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
                    " version = excluded.version, lease = excluded.lease",
                    (key.encode(), value, revision, revision, txn.lease),
                )
                change = (revision, key.encode(), value)
                self._connection.execute("INSERT INTO change VALUES (?, ?, ?)", change)
            for key in present:
                self._delete(key.encode(), revision)
            self._advance(revision, compacted)
        return revision

    def leases(self) -> Sequence[tuple[int, int]]:
        return self._connection.execute("SELECT id, ttl_ms FROM lease").fetchall()

    def grant(self, ttl_ms: int) -> int:
        with _transaction(self._connection):
            (count,) = self._connection.execute("SELECT count(*) FROM lease").fetchone()
            if count >= LEASES_MAX:
                raise Throttled(f"The limit of {LEASES_MAX} metadata leases is reached; retry.")
            added = self._connection.execute("INSERT INTO lease (ttl_ms) VALUES (?)", (ttl_ms,))
            assert added.lastrowid, "SQLite row ids start at 1"
            return added.lastrowid

    def end_lease(self, lease: int) -> None:
        """Delete a lease and its entries. Many entries are deleted at several revisions, because a
        watch must be able to read all changes of a revision at once."""
        with _transaction(self._connection):
            keys = self._connection.execute(
                "SELECT key FROM entry WHERE lease = ? AND lease <> 0 ORDER BY key", (lease,)
            ).fetchall()
            revision, compacted = self._head()
            for start in range(0, len(keys), CHANGES_PER_TXN_MAX):
                revision += 1
                for (key,) in keys[start : start + CHANGES_PER_TXN_MAX]:
                    self._delete(key, revision)
            self._connection.execute("DELETE FROM lease WHERE id = ?", (lease,))
            if keys:
                self._advance(revision, compacted)

    def read_changes(self, prefix: str, from_revision: int) -> tuple[Sequence[Change], int]:
        """Return changes of keys with a prefix since a revision, and the next revision to read."""
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
            # The last revision may be cut by the limit: it is read whole the next time.
            next_revision = rows[-1][0]
            rows = [row for row in rows if row[0] < next_revision]
            assert rows, "a read must fit more than one transaction"
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

    def _revisions(self, key: str) -> tuple[int, int]:
        """Return an entry's version and create revision, or (0, 0) if the key does not exist."""
        row = self._connection.execute(
            "SELECT version, create_revision FROM entry WHERE key = ?", (key.encode(),)
        ).fetchone()
        return (0, 0) if row is None else (row[0], row[1])

    def _delete(self, key: bytes, revision: int) -> None:
        self._connection.execute("DELETE FROM entry WHERE key = ?", (key,))
        self._connection.execute("INSERT INTO change VALUES (?, ?, NULL)", (revision, key))

    def _advance(self, revision: int, compacted: int) -> None:
        # History may exceed its bound by a quarter, so that not every commit has to trim it.
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
        if connection.in_transaction:  # some errors have already rolled back
            connection.execute("ROLLBACK")
        raise


class LeaseTimes(dict[int, tuple[int, int]]):
    """The end times and TTLs of leases. After a restart every lease lasts its full TTL again."""

    def begin(self, lease: int, *, ttl_ms: int, now_ms: int) -> None:
        self[lease] = (now_ms + ttl_ms, ttl_ms)

    def renew(self, lease: int, *, now_ms: int) -> int:
        end_ms, ttl_ms = self.get(lease, (now_ms, 0))
        if end_ms <= now_ms:
            raise LeaseGone(lease)
        self.begin(lease, ttl_ms=ttl_ms, now_ms=now_ms)
        return ttl_ms

    def ended(self, *, now_ms: int) -> Sequence[int]:
        """Return the leases that have ended, oldest first."""
        return sorted(
            (one for one, (at_ms, _) in self.items() if at_ms <= now_ms), key=self.__getitem__
        )

    def next_end_ms(self) -> int | None:
        return min((end_ms for end_ms, _ in self.values()), default=None)


class SqliteStore(Store):
    def __init__(
        self, database: _Database, thread: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._database = database
        self._thread = thread
        self._loop = loop
        self._call_count = 0
        self._is_closed = False
        self._wakes: set[asyncio.Event] = set()  # one per open watch
        self._leases = LeaseTimes()
        self._lease_began = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None  # ends leases; started with the first lease

    @classmethod
    async def open(
        cls, path: Path, *, history_revisions_max: int = HISTORY_REVISIONS_MAX
    ) -> "SqliteStore":
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
        store = cls(database, thread, loop)
        for lease, ttl_ms in await store._call(database.leases):
            store._begin_lease(lease, ttl_ms)
        return store

    async def get(self, key: str) -> Entry | None:
        return await self._call(self._database.get, key)

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        return await self._call(self._database.list, prefix, min_revision)

    async def commit(self, txn: Txn) -> int:
        check_changes(txn)
        return await self._call(self._commit, self._database.txn, txn)

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while not self._is_closed:
                # Cleared before the read: a commit after the read sets the event again.
                wake.clear()
                read = self._database.read_changes
                changes, from_revision = await self._call(read, prefix, from_revision)
                if changes:
                    yield changes
                else:
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        return await self._call(self._grant, ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        ttl_ms = self._leases.renew(lease, now_ms=self._now_ms())
        await self._call(lambda: None)  # a store that refuses all calls must not keep leases alive
        return ttl_ms

    async def revoke(self, lease: int) -> None:
        await self._call(self._commit, self._database.end_lease, lease)
        self._leases.pop(lease, None)

    def _grant(self, ttl_ms: int) -> int:
        lease = self._database.grant(ttl_ms)
        # Called from this thread, because the caller may have been cancelled meanwhile.
        self._loop.call_soon_threadsafe(self._begin_lease, lease, ttl_ms)
        return lease

    def _begin_lease(self, lease: int, ttl_ms: int) -> None:
        self._leases.begin(lease, ttl_ms=ttl_ms, now_ms=self._now_ms())
        self._lease_began.set()
        if self._ending is None and not self._is_closed:
            self._ending = self._loop.create_task(self._end_leases(), name="metadata leases")

    async def _end_leases(self) -> None:
        while True:
            self._lease_began.clear()
            try:
                for lease in self._leases.ended(now_ms=self._now_ms()):
                    await self.revoke(lease)
            except PenstockError as error:
                log.warning("ending expired leases failed", extra={"reason": str(error)})
                await asyncio.sleep(ENDING_RETRY_SECONDS)
                continue
            end_ms = self._leases.next_end_ms()
            wait_ms = None if end_ms is None else max(0, end_ms - self._now_ms()) + 1
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait_ms is None else wait_ms / 1_000):
                    await self._lease_began.wait()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    async def close(self) -> None:
        """Finish the calls that are waiting, then close. Later calls are rejected."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake_watches()
        ending, self._ending = self._ending, None
        await abandon(ending)
        await self._loop.run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=True)  # the thread has no more work

    async def _call(self, work: Callable[..., T], *args: Any) -> T:
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        if self._call_count == CALLS_MAX:
            raise Throttled(f"The limit of {CALLS_MAX} metadata calls at a time is reached; retry.")
        self._call_count += 1
        try:
            guarded = self._database.guarded
            return await self._loop.run_in_executor(self._thread, guarded, work, *args)
        finally:
            self._call_count -= 1

    def _commit(self, work: Callable[[Any], T], argument: Any) -> T:
        done = work(argument)
        # Called from this thread, because the caller may have been cancelled meanwhile.
        self._loop.call_soon_threadsafe(self._wake_watches)
        return done

    def _wake_watches(self) -> None:
        for wake in self._wakes:
            wake.set()
