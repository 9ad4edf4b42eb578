"""From a backup to a data folder that a server can be started on.

    a node by itself     its logs, and a metadata store beside them
    a fresh cluster      the logs of one node, and in the cluster's etcd the definitions and a row
                         for each partition that says: this node has it, and nobody else does yet

The nodes of a cluster that are started next get their copies as any new replica does, so a backup
of any deployment fits any other. Leases are what the logs say of them; nothing else is kept of who
was leading or where things were. Topics, receipts, producers and groups keep their ids.

The store comes last. Until it is there, what was written is a heap of logs that no server knows of,
and whatever ends a restore early takes away what it has written.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.broker.partitions import TOPICS_FOLDER
from penstock.log.log import Log, LogConfig
from penstock.metadata.catalog import TOPICS_PREFIX
from penstock.metadata.cluster_entries import (
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    PartitionKey,
    encode_entry,
    partition_key,
)
from penstock.metadata.identity_entries import TENANTS_PREFIX, USERS_PREFIX
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import CHANGES_PER_TXN_MAX, TXN_BYTES_MAX, Store
from penstock.model.errors import Conflict, Damaged, PenstockError, VersionConflict
from penstock.node.backup_files import batches_of, definitions_of
from penstock.node.backup_manifest import BackupUnusable, Manifest, PartitionPart
from penstock.node.backup_writing import sync_folder
from penstock.node.config import Config
from penstock.node.exposure import check_etcd
from penstock.node.folder import LOCK_NAME, METADATA_NAME, DataFolder, FolderUnusable
from penstock.node.keyring import KMS_NAME, MASTER_NAME
from penstock.node.metadata_link import open_etcd
from penstock.replication.row import PartitionRow

RESTORING_NAME: Final = "metadata.restoring"
# A master key may wait there for what it opens; a file system of its own has a folder of its own.
WELCOME: Final = frozenset((MASTER_NAME, KMS_NAME, LOCK_NAME, "lost+found"))
_EMPTY: Final = (TOPICS_PREFIX, TENANTS_PREFIX, USERS_PREFIX, PARTITIONS_PREFIX, NODES_PREFIX)

Told = Callable[[int, int], None]


def restore(backup: Path, manifest: Manifest, config: Config, *, now_ms: int, told: Told) -> None:
    """Into ``node.data``, and where ``cluster.node`` says so into the cluster's etcd. ``told``
    hears how many bytes are done, of how many. Raises FolderUnusable, BackupUnusable, Conflict,
    ExposureRefused."""
    check_etcd(config)
    data = Path(config.node.data)
    _check_welcome(data)
    folder = DataFolder(data)
    before = {path.name for path in data.iterdir()}
    try:
        asyncio.run(_check_fresh(config, data))
        _restore_logs(backup, manifest, data / TOPICS_FOLDER, now_ms, told)
        asyncio.run(_fill(config, data, backup, manifest))
        if not config.cluster.node:
            (data / RESTORING_NAME).rename(data / METADATA_NAME)
        sync_folder(data)
    except BaseException:
        _clear(data, before)
        raise
    finally:
        folder.release()


def _check_welcome(data: Path) -> None:
    if not data.exists():
        return
    if not data.is_dir():
        raise FolderUnusable(f"{data} is not a folder")
    strangers = sorted(path.name for path in data.iterdir() if path.name not in WELCOME)
    if strangers:
        raise FolderUnusable(
            f"the data folder {data} is not empty: it has {strangers[0]}"
            + (f" and {len(strangers) - 1} more" if len(strangers) > 1 else "")
        )


def _clear(data: Path, before: set[str]) -> None:
    for path in data.iterdir():
        if path.name in before:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# ── Logs ─────────────────────────────────────────────────────────────────────────────────────


def _restore_logs(backup: Path, manifest: Manifest, topics: Path, now_ms: int, told: Told) -> None:
    topics.mkdir()
    total = sum(part.size_bytes for part in manifest.partitions)
    done = 0
    for part in manifest.partitions:
        for size_bytes in _restore_log(backup, part, topics, now_ms):
            done += size_bytes
            told(done, total)
    for below, _, _ in os.walk(topics):
        sync_folder(Path(below))


def _restore_log(backup: Path, part: PartitionPart, topics: Path, now_ms: int) -> Iterator[int]:
    """One log as a clean stop leaves it. Yields what was appended."""
    folder = topics / part.topic_id / str(part.partition)
    log = Log.open(folder, LogConfig(tail_bytes_max=0), now_ms=now_ms)
    try:
        if part.start_offset:
            log.restart(part.start_offset)
        for file in part.files:
            for data in batches_of(backup, file):
                try:
                    appended = log.append_stretch(data, now_ms=now_ms)
                except Damaged as error:
                    raise BackupUnusable(f"{file.path}: {error}") from error
                if not appended or appended[-1].next_offset != log.end_offset:
                    raise BackupUnusable(f"{file.path}: nothing to append")
                yield len(data)
            _sync(log)
        if log.end_offset != part.end_offset:
            raise BackupUnusable(
                f"{part.topic_id}/{part.partition}: it ends at offset {log.end_offset} instead of"
                f" {part.end_offset}"
            )
        if part.low_watermark > log.start_offset:
            log.store_low_watermark(part.low_watermark)
        log.settle()  # it is what it should be: nobody has to be told otherwise
    except BaseException:
        log.close(clean=False)
        raise
    log.close()


def _sync(log: Log) -> None:
    """Whatever has been rolled is held open until then."""
    job = log.begin_sync()
    if job is not None:
        job.run()
        log.finish_sync(job)


# ── The store ────────────────────────────────────────────────────────────────────────────────


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
    """Before anything is written that takes time. Raises Conflict."""
    if config.cluster.node and not config.cluster.etcd:
        raise Conflict("a cluster is restored into its etcd: give --etcd as well as --node")
    async with _store_of(config, data) as store:
        for prefix in _EMPTY:
            entries, _ = await store.list(prefix)
            if entries:
                raise Conflict(
                    f"the cluster '{config.internal.cluster}' is not a fresh one: its store has"
                    f" {entries[0].key}. Stop its nodes, and give it another internal.cluster"
                )


async def _fill(config: Config, data: Path, backup: Path, manifest: Manifest) -> None:
    """All of it, or nothing that stays."""
    put: list[str] = []
    async with _store_of(config, data) as store:
        try:
            for some in _portions(_entries(backup, manifest, config.cluster.node)):
                keys = [key for key, _ in some]
                try:
                    await store.txn(compare=[(key, 0) for key in keys], puts=some)
                except VersionConflict:
                    keys = []  # they are somebody else's
                    raise
                finally:
                    put += keys
        except BaseException:
            with contextlib.suppress(PenstockError):
                for start in range(0, len(put), CHANGES_PER_TXN_MAX):
                    await store.txn(deletes=put[start : start + CHANGES_PER_TXN_MAX])
            raise


def _entries(backup: Path, manifest: Manifest, node: int) -> Iterator[tuple[str, bytes]]:
    """Rows first: a topic that has none would be taken for a new one."""
    if node:
        for part in manifest.partitions:
            key = PartitionKey(part.topic_id, part.partition)
            yield partition_key(key), encode_entry(_row(part, node))
    for line in definitions_of(backup, manifest):
        yield line.key, line.value


def _row(part: PartitionPart, node: int) -> PartitionRow:
    """The first election comes in a later epoch than any batch."""
    return PartitionRow(
        (node,),
        frozenset((node,)),
        epoch=max(part.last_epoch, 0),
        watermark_floor=part.end_offset,
    )


def _portions(entries: Iterable[tuple[str, bytes]]) -> Iterator[Sequence[tuple[str, bytes]]]:
    """As much as one transaction takes."""
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
