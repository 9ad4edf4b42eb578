"""Restores a backup into an empty data folder. Then a server can be started with this folder.

    a single node      the folder gets all logs and a metadata store
    a new cluster      the folder of one node gets all logs; the cluster's etcd gets the metadata,
                       where this node is the only replica of each partition

The other nodes of a cluster then copy the partitions like any new replica, so a backup of a single
node can be restored into a cluster and vice versa. Leases are restored, because they are in the
logs; leaders and placement are not. Topics, receipts, producers and groups keep their ids. The
store is written last, so no server uses a partial restore. After an error, all files and entries
that were written are removed.

A copy must not call the endpoints of the original: subscriptions are paused until an operator
resumes them, except those of queues, whose messages stay in the copy."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.backup.manifest import (
    BackupUnusable,
    Manifest,
    PartitionPart,
    batches_of,
    definitions_of,
)
from penstock.broker.partition.partitions import TOPICS_FOLDER
from penstock.log.log import Log, LogConfig
from penstock.log.storage.files import DISK
from penstock.metadata import cluster_entries as cluster
from penstock.metadata.security.identity_entries import TENANTS_PREFIX, USERS_PREFIX
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import CHANGES_PER_TXN_MAX, TXN_BYTES_MAX, Store
from penstock.metadata.subscriptions import SUBSCRIPTIONS_PREFIX, paused_entry
from penstock.metadata.topics.catalog import TOPICS_PREFIX
from penstock.model.errors import Conflict, Damaged, PenstockError, VersionConflict
from penstock.model.levels import LEVEL_MAX
from penstock.node.configuration.cluster_config import ClusterConfig
from penstock.node.configuration.config import Config
from penstock.node.configuration.exposure import check_etcd
from penstock.node.keys.keyring import KMS_NAME, MASTER_NAME
from penstock.node.metadata.metadata_link import open_etcd
from penstock.node.process.folder import LOCK_NAME, METADATA_NAME, DataFolder, FolderUnusable
from penstock.replication.row import PartitionRow

RESTORING_NAME: Final = "metadata.restoring"
RESTORED: Final = "restored"  # why a subscription of a restored backup is paused
# Allowed in an empty data folder: a master key, and what a new file system contains.
ALLOWED: Final = frozenset((MASTER_NAME, KMS_NAME, LOCK_NAME, "lost+found"))
_EMPTY: Final = (
    TOPICS_PREFIX,
    TENANTS_PREFIX,
    USERS_PREFIX,
    cluster.PARTITIONS_PREFIX,
    cluster.NODES_PREFIX,
    cluster.LEVEL_KEY,
)

Progress = Callable[[int, int], None]


def restore(
    backup: Path,
    manifest: Manifest,
    config: Config,
    *,
    is_pushing: bool,  # the copy calls endpoints as the original did
    now_ms: int,
    progress: Progress,
) -> int:
    """Restore a backup into the data folder, and for a cluster node also into etcd. Returns the
    number of subscriptions that were paused."""
    check_etcd(config)
    data = Path(config.node.data)
    _check_empty(data)
    folder = DataFolder(data)
    before = {path.name for path in data.iterdir()}
    try:
        asyncio.run(_check_fresh(config, data))
        _restore_logs(backup, manifest, data / TOPICS_FOLDER, now_ms, progress)
        definitions = _Definitions(backup, manifest, is_pushing)
        asyncio.run(_fill(config, data, _entries(definitions, config.cluster)))
        if not config.cluster.node:
            (data / RESTORING_NAME).rename(data / METADATA_NAME)
        DISK.sync_folder(data)
        return definitions.paused_count
    except BaseException:
        _clear(data, before)
        raise
    finally:
        folder.release()


def _check_empty(data: Path) -> None:
    if not data.exists():
        return
    if not data.is_dir():
        raise FolderUnusable(f"{data} is not a folder")
    others = sorted(path.name for path in data.iterdir() if path.name not in ALLOWED)
    if others:
        raise FolderUnusable(
            f"the data folder {data} is not empty: it contains {others[0]}"
            + (f" and {len(others) - 1} more" if len(others) > 1 else "")
        )


def _clear(data: Path, before: set[str]) -> None:
    for path in data.iterdir():
        if path.name in before:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _restore_logs(
    backup: Path, manifest: Manifest, topics: Path, now_ms: int, progress: Progress
) -> None:
    topics.mkdir()
    total = sum(part.size_bytes for part in manifest.partitions)
    done = 0
    for part in manifest.partitions:
        for size_bytes in _restore_log(backup, part, topics, now_ms):
            done += size_bytes
            progress(done, total)
    for below, _, _ in os.walk(topics):
        DISK.sync_folder(Path(below))


def _restore_log(backup: Path, part: PartitionPart, topics: Path, now_ms: int) -> Iterator[int]:
    """Write the log of one partition. After each append, yields the number of appended bytes."""
    folder = topics / part.topic_id / str(part.partition)
    log = Log.open(folder, LogConfig(tail_bytes_max=0), now_ms=now_ms)
    try:
        if part.start_offset:
            log.restart(part.start_offset)
        for file in part.files:
            for data in batches_of(backup, file):
                try:
                    appended = log.append_copied(data, now_ms=now_ms)
                except Damaged as error:
                    raise BackupUnusable(f"{file.path}: {error}") from error
                if not appended or appended[-1].next_offset != log.end_offset:
                    raise BackupUnusable(f"{file.path}: batches are missing or out of order")
                yield len(data)
            job = log.begin_sync()
            if job is not None:
                job.run()
                log.finish_sync(job)
        if log.end_offset != part.end_offset:
            raise BackupUnusable(
                f"partition {part.topic_id}/{part.partition} ends at offset {log.end_offset}"
                f" instead of {part.end_offset}"
            )
        if part.low_watermark > log.start_offset:
            log.store_low_watermark(part.low_watermark)
        log.settle()
    except BaseException:
        log.close(clean=False)
        raise
    log.close()


@contextlib.asynccontextmanager
async def _store_of(config: Config, data: Path) -> AsyncIterator[Store]:
    store: Store
    if config.cluster.node:
        store = await open_etcd(config)
    else:
        store = await SqliteStore.open(data / RESTORING_NAME)
    try:
        yield store
    finally:
        await store.close()


async def _check_fresh(config: Config, data: Path) -> None:
    """Raise Conflict if the store is not empty. Must be called before anything is written."""
    if config.cluster.node and not config.cluster.etcd:
        raise Conflict("a cluster is restored into its etcd; with --node, set --etcd too")
    async with _store_of(config, data) as store:
        for prefix in _EMPTY:
            entries, _ = await store.list(prefix)
            if entries:
                raise Conflict(
                    f"the cluster '{config.internal.cluster}' is not new: its store contains"
                    f" {entries[0].key}. Stop its nodes, and choose another internal.cluster"
                )


async def _fill(config: Config, data: Path, entries: Iterator[tuple[str, bytes]]) -> None:
    """Write all entries to the store. After an error, the entries already written are deleted."""
    put: list[str] = []
    async with _store_of(config, data) as store:
        try:
            for some in _portions(entries):
                keys = [key for key, _ in some]
                try:
                    await store.txn(compare=[(key, 0) for key in keys], puts=some)
                except VersionConflict:
                    keys = []  # written by another process
                    raise
                finally:
                    put += keys
        except BaseException:
            with contextlib.suppress(PenstockError):
                for start in range(0, len(put), CHANGES_PER_TXN_MAX):
                    await store.txn(deletes=put[start : start + CHANGES_PER_TXN_MAX])
            raise


class _Definitions:
    """The topics, users, subscriptions and other definitions of a backup."""

    def __init__(self, backup: Path, manifest: Manifest, is_pushing: bool) -> None:
        self.manifest = manifest
        self._backup, self._is_pushing = backup, is_pushing
        self.paused_count = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for line in definitions_of(self._backup, self.manifest):
            paused = None
            if line.key.startswith(SUBSCRIPTIONS_PREFIX) and not self._is_pushing:
                paused = paused_entry(line.value, RESTORED)
                self.paused_count += paused is not None
            yield line.key, paused or line.value


def _entries(definitions: _Definitions, config: ClusterConfig) -> Iterator[tuple[str, bytes]]:
    """Yield the entries to restore. Partition rows come first, because a topic without rows would
    be treated as a new topic, and get new, empty partitions."""
    node = config.node
    if node:
        # As a new cluster does. With rows and without a level, nodes would use the first level, and
        # ignore definitions that need a higher one.
        level = cluster.LevelEntry(config.feature_level_max or LEVEL_MAX)
        yield cluster.LEVEL_KEY, cluster.encode_entry(level)
        for part in definitions.manifest.partitions:
            key = cluster.PartitionKey(part.topic_id, part.partition)
            # The first election has a later epoch than any batch.
            epoch = max(part.last_epoch, 0)
            row = PartitionRow(
                (node,), frozenset((node,)), epoch=epoch, watermark_floor=part.end_offset
            )
            yield cluster.partition_key(key), cluster.encode_entry(row)
    yield from definitions


def _portions(entries: Iterable[tuple[str, bytes]]) -> Iterator[Sequence[tuple[str, bytes]]]:
    some: list[tuple[str, bytes]] = []
    size = 0
    for key, value in entries:
        added = len(key.encode()) + len(value)
        if some and (len(some) == CHANGES_PER_TXN_MAX or size + added > TXN_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append((key, value))
        size += added
    if some:
        yield some
