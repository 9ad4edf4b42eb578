"""A ``metadata.store.Store`` in memory that counts what is asked of it and what its watches tell.

It answers like the others (a test runs it beside SQLite) and does nothing else: no disk, no clock,
no thread. So what a cluster asks of its store can be counted at sizes for which no disk has the
patience, and what is left of the time is the caller's own. Leases end by ``revoke`` alone."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from penstock.metadata.store import (
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
)

HISTORY_CHANGES_MAX: Final = 1_000_000


class Counts(msgspec.Struct):
    """Since they were last set to nothing."""

    txns: int = 0  # carried out
    refused: int = 0
    compared: int = 0  # keys, in transactions that were carried out
    changed: int = 0  # keys
    changed_bytes: int = 0  # their keys and values
    lists: int = 0
    listed: int = 0  # entries
    told: int = 0  # changes, once for each watch
    told_bytes: int = 0  # their keys and values


class MemoryStore(Store):
    """Implements ``store.Store``."""

    def __init__(self, *, history_changes_max: int = HISTORY_CHANGES_MAX) -> None:
        self.counts = Counts()
        self.is_copying = False  # lists are made of copies, as by a store that reads its entries
        self._entries: dict[str, Entry] = {}
        self._revision = 1
        self._history: list[Change] = []
        self._history_start = 1  # from this revision on it is whole
        self._history_changes_max = history_changes_max
        self._moved = asyncio.Event()
        self._leases: dict[int, tuple[int, set[str]]] = {}  # time to live, and what hangs on it
        self._lease_of: dict[str, int] = {}
        self._last_lease = 0
        self._is_closed = False

    def begin_count(self) -> None:
        self.counts = Counts()

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        if self._revision < min_revision:
            raise StoreUnusable(f"at revision {self._revision}, though {min_revision} was seen")
        found = sorted(
            (entry for key, entry in self._entries.items() if key.startswith(prefix)),
            key=lambda entry: entry.key.encode(),
        )
        self.counts.lists += 1
        self.counts.listed += len(found)
        return [_copy(entry) for entry in found] if self.is_copying else found, self._revision

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        while not self._is_closed:
            if from_revision < self._history_start:
                raise Compacted(self._history_start)
            moved = self._moved
            at = bisect_left(self._history, from_revision, key=_version)
            found = [change for change in self._history[at:] if change.key.startswith(prefix)]
            from_revision = max(from_revision, self._revision + 1)
            if found:
                self.counts.told += len(found)
                self.counts.told_bytes += sum(len(one.key) + len(one.value) for one in found)
                yield found
            if moved is self._moved:
                await moved.wait()

    # ── Changing ─────────────────────────────────────────────────────────────────────────────

    async def commit(self, txn: Txn) -> int:
        check_changes(txn)
        compare, compare_created, lease = txn.compare, txn.compare_created, txn.lease
        puts, deletes = txn.puts, txn.deletes
        if lease and lease not in self._leases:
            raise LeaseGone(lease)
        if (conflict := find_conflict(txn, self._revisions)) is not None:
            self.counts.refused += 1
            raise conflict
        gone = [key for key in deletes if key in self._entries]
        if puts or gone:
            self._change(puts, gone, lease)
        counts = self.counts
        counts.txns += 1
        counts.compared += len(compare) + len(compare_created)
        counts.changed += len(puts) + len(gone)
        counts.changed_bytes += sum(len(key) + len(value) for key, value in puts)
        return self._revision

    def _revisions(self, key: str) -> tuple[int, int]:
        entry = self._entries.get(key)
        return (0, 0) if entry is None else (entry.version, entry.create_revision)

    def _change(self, puts: Sequence[tuple[str, bytes]], gone: Sequence[str], lease: int) -> None:
        self._revision += 1
        for key, value in puts:
            self._let_go(key)
            before = self._entries.get(key)
            created = self._revision if before is None else before.create_revision
            self._entries[key] = Entry(key, value, self._revision, created)
            self._history.append(Change(ChangeKind.PUT, key, value, self._revision))
            if lease:
                self._leases[lease][1].add(key)
                self._lease_of[key] = lease
        for key in gone:
            self._let_go(key)
            del self._entries[key]
            self._history.append(Change(ChangeKind.DELETE, key, b"", self._revision))
        self._trim()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _let_go(self, key: str) -> None:
        lease = self._lease_of.pop(key, 0)
        if lease:
            self._leases[lease][1].discard(key)

    def _trim(self) -> None:
        surplus = len(self._history) - self._history_changes_max
        if surplus > self._history_changes_max // 4:
            self._history_start = self._history[surplus - 1].version + 1
            del self._history[: bisect_left(self._history, self._history_start, key=_version)]

    # ── Leases ───────────────────────────────────────────────────────────────────────────────

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        self._last_lease += 1
        self._leases[self._last_lease] = (ttl_ms, set())
        return self._last_lease

    async def keep_alive(self, lease: int) -> int:
        if lease not in self._leases:
            raise LeaseGone(lease)
        return self._leases[lease][0]

    async def revoke(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is not None:
            keys = sorted(held[1])
            if keys:
                self._change((), keys, 0)
            del self._leases[lease]

    async def close(self) -> None:
        self._is_closed = True
        self._moved.set()


def _version(change: Change) -> int:
    return change.version


def _copy(entry: Entry) -> Entry:
    key, value = entry.key.encode().decode(), bytes(bytearray(entry.value))
    return Entry(key, value, entry.version, entry.create_revision)
