"""What is SQLite's own: its files, its failures, its thread."""

import asyncio
import sqlite3
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.metadata import sqlite as sqlite_store
from penstock.metadata.sqlite import SCHEMA_VERSION, SqliteStore
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Entry, LeaseGone, StoreUnusable
from penstock.model.errors import DiskFull, Throttled, VersionConflict


async def refused(path: Path) -> str:
    with pytest.raises(StoreUnusable) as caught:
        await SqliteStore.open(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


async def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"these are not the bytes you are looking for" * 100)
    assert "not a usable metadata database" in await refused(path)


async def test_a_damaged_page_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = await SqliteStore.open(path)
    for n in range(300):
        await store.put(f"/{n}", bytes(200))
    await store.close()
    with path.open("r+b") as file:
        for page in range(3, 12):
            file.seek(page * 4_096)
            file.write(b"\x5a" * 4_096)
    assert "metadata.db" in await refused(path)


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await (await SqliteStore.open(path)).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "newer version" in await refused(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
    connection.close()


async def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "another program" in await refused(path)
    assert path.read_bytes() == before


async def test_a_missing_folder_and_a_folder_in_the_files_place_are_refused(tmp_path: Path) -> None:
    assert "cannot be opened" in await refused(tmp_path / "missing" / "metadata.db")
    assert "unable to open" in await refused(tmp_path)


async def test_commits_are_synced_in_wal_mode(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")

    def pragma(name: str) -> object:
        return store._database._connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert await store._call(lambda: pragma("journal_mode")) == "wal"
    assert await store._call(lambda: pragma("synchronous")) == 2
    await store.close()


async def test_what_was_answered_survives_a_process_that_never_closed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = await SqliteStore.open(path)
    await store.put("/a", b"1")
    # The files as a killed process leaves them: the newest commits only in the WAL.
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in (path, path.with_name("metadata.db-wal")):
        (crashed / file.name).write_bytes(file.read_bytes())
    await store.close()
    store = await SqliteStore.open(crashed / "metadata.db")
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b"1"
    await store.close()


async def test_a_full_disk_is_named_and_passes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")

    def limit_pages(count: int) -> None:
        store._database._connection.execute(f"PRAGMA max_page_count = {count}")

    await store._call(lambda: limit_pages(8))
    with pytest.raises(DiskFull):
        await store.put("/a", bytes(400_000))
    assert await store.list("") == ([], 0)
    await store._call(lambda: limit_pages(10_000))
    assert await store.put("/a", bytes(400_000)) == 1
    await store.close()


async def test_after_an_io_error_the_store_refuses_everything(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with pytest.raises(StoreUnusable, match="disk I/O error"):
        await store._call(fail)
    with pytest.raises(StoreUnusable, match="restart"):
        await store.get("/a")
    await store.close()


async def test_another_process_holding_the_lock_is_an_overload_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS_MAX", 0.05)
    path = tmp_path / "metadata.db"
    store = await SqliteStore.open(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Throttled):
        await store.put("/a", b"1")
    other.execute("ROLLBACK")
    other.close()
    assert await store.put("/a", b"1") == 1
    await store.close()


async def test_calls_waiting_for_the_thread_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CALLS_MAX", 2)
    store = await SqliteStore.open(tmp_path / "metadata.db")
    gate = threading.Event()
    waiting = [asyncio.ensure_future(store._call(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Throttled):
        await store.get("/a")
    gate.set()
    await asyncio.gather(*waiting)
    assert await store.get("/a") is None
    await store.close()


async def test_a_cancelled_caller_leaves_a_whole_change_or_none(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    for n in range(20):
        call = asyncio.ensure_future(store.txn(puts=((f"/{n}/a", b""), (f"/{n}/b", b""))))
        await asyncio.sleep(0 if n % 2 else 0.001)
        call.cancel()
        await asyncio.wait((call,))
        entries, _ = await store.list(f"/{n}/")
        assert len(entries) in (0, 2)
    await store.close()


async def test_a_closed_store_refuses_calls_and_may_be_closed_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    await store.close()
    await store.close()
    with pytest.raises(StoreUnusable):
        await store.get("/a")
    assert not any(thread.name.startswith("metadata") for thread in threading.enumerate())


async def test_history_stays_bounded(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db", history_revisions_max=20)

    def history_count() -> int:
        row = store._database._connection.execute("SELECT count(*) FROM change").fetchone()
        return int(row[0])

    for n in range(100):
        await store.put("/a", b"%d" % n)
        assert 0 < await store._call(history_count) <= 25
    with pytest.raises(VersionConflict):
        await store.put("/a", b"", if_version=1)
    await store.close()


async def test_a_database_of_the_first_schema_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    for statement in sqlite_store.MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute("INSERT INTO entry VALUES (?, ?, 7, 5)", (b"/a", b"old"))
    connection.execute("INSERT INTO change VALUES (7, ?, ?)", (b"/a", b"old"))
    connection.execute("UPDATE head SET revision = 7, compacted = 6")
    connection.execute(f"PRAGMA application_id = {sqlite_store.APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    store = await SqliteStore.open(path)
    assert await store.get("/a") == Entry("/a", b"old", 7, 5)
    lease = await store.grant(60_000)
    assert await store.txn(compare=(("/a", 7),), puts=(("/b", b""),), lease=lease) == 8
    await store.revoke(lease)
    assert [entry.key for entry in (await store.list(""))[0]] == ["/a"]
    await store.close()


async def test_after_a_restart_every_lease_has_its_whole_time_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr(SqliteStore, "_now_ms", lambda _store: now_ms)
    path = tmp_path / "metadata.db"
    store = await SqliteStore.open(path)
    lease = await store.grant(1_000)
    await store.txn(puts=(("/a", b""),), lease=lease)
    now_ms = 600
    await store.close()
    store = await SqliteStore.open(path)
    now_ms = 1_200
    assert await store.keep_alive(lease) == 1_000
    now_ms = 2_200
    async with asyncio.timeout(10), aclosing(store.watch("/", from_revision=2)) as watch:
        assert (await anext(watch))[0].key == "/a"
    assert await store.grant(1_000) > lease
    await store.close()


async def test_a_lease_with_more_on_it_than_a_transaction_changes_ends_whole(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    lease = await store.grant(60_000)
    count = 2 * CHANGES_PER_TXN_MAX + 1
    for start in range(0, count, CHANGES_PER_TXN_MAX):
        names = range(start, min(count, start + CHANGES_PER_TXN_MAX))
        revision = await store.txn(puts=[(f"/{n}", b"") for n in names], lease=lease)
    await store.revoke(lease)
    assert await store.list("") == ([], revision + 3)
    seen: list[str] = []
    async with aclosing(store.watch("/", from_revision=revision + 1)) as watch:
        while len(seen) < count:
            seen += [change.key for change in await anext(watch)]
    assert len(set(seen)) == count
    await store.close()


async def test_leases_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "LEASES_MAX", 2)
    store = await SqliteStore.open(tmp_path / "metadata.db")
    first = await store.grant(60_000)
    await store.grant(60_000)
    with pytest.raises(Throttled):
        await store.grant(60_000)
    await store.revoke(first)
    await store.grant(60_000)
    await store.close()


async def test_a_lease_that_could_not_be_ended_is_ended_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS_MAX", 0.02)
    monkeypatch.setattr(sqlite_store, "ENDING_RETRY_SECONDS", 0.02)
    now_ms = 0
    monkeypatch.setattr(SqliteStore, "_now_ms", lambda _store: now_ms)
    path = tmp_path / "metadata.db"
    store = await SqliteStore.open(path)
    lease = await store.grant(500)
    revision = await store.txn(puts=(("/a", b""),), lease=lease)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    now_ms = 700
    await asyncio.sleep(0.7)  # it looks after half a second
    assert await store.get("/a") is not None
    with pytest.raises(LeaseGone):
        await store.keep_alive(lease)
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(10), aclosing(store.watch("/", from_revision=revision + 1)) as watch:
        assert (await anext(watch))[0].key == "/a"
    await store.close()
