"""A real broker with a backup taken of it: what ``penstock backup create`` does, without the HTTP
in between."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.unit.broker.stage import Stage

from penstock.backup.admin import BackupAdmin, NodeCut
from penstock.backup.manifest import Manifest
from penstock.backup.writing import Pace, write_backup
from penstock.broker.backup_positions import BackupPositions
from penstock.frontend.admin.ports import Definition, Health, PartitionCut, Piece, StartedBackup
from penstock.metadata.store import Store

T = TypeVar("T")


def admin_of(stage: Stage) -> BackupAdmin:
    broker = stage.broker
    store: Store = stage.catalog._store
    cutting = BackupPositions(broker.partitions, broker._context.hold, stage.clock)
    health = Health()
    health.ready()
    return BackupAdmin(
        NodeCut(cutting, stage.catalog),
        stage.catalog,
        broker,
        store=store,
        own_store=store,
        health=health,
        clock=stage.clock,
        entropy=secrets.token_bytes,
        node="n1",
        namespace=("000000000000", "us-east-1"),
        master_key_id="00000000",
    )


class StageSource:
    """A ``Source`` for a thread, of a broker that runs on a loop. ``on_read`` happens there before
    each read."""

    def __init__(
        self,
        admin: BackupAdmin,
        loop: asyncio.AbstractEventLoop,
        on_read: Callable[[int], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._admin = admin
        self._loop = loop
        self._on_read = on_read
        self._id = ""
        self.read_count = 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def begin(self) -> StartedBackup:
        begun = self._run(self._admin.begin())
        self._id = begun.id
        return begun

    def definitions(self) -> Iterator[Definition]:
        after = 0
        while found := self._run(self._admin.definitions(self._id, after=after)):
            yield from found
            after += len(found)

    def partitions(self) -> Iterator[PartitionCut]:
        after = 0
        while found := self._run(self._admin.partitions(self._id, after=after, limit=1)):
            yield from found
            after += len(found)

    def read(self, topic_id: str, partition: int, offset: int) -> Piece:
        self.read_count += 1
        if self._on_read is not None:
            self._run(self._on_read(self.read_count))
        return self._run(self._admin.read(self._id, topic_id, partition, offset))

    def end(self) -> None:
        self._run(self._admin.end(self._id))


async def backed_up(
    stage: Stage,
    folder: Path,
    on_read: Callable[[int], Coroutine[Any, Any, None]] | None = None,
) -> tuple[Path, Manifest]:
    source = StageSource(admin_of(stage), asyncio.get_running_loop(), on_read)
    return await asyncio.to_thread(
        write_backup, source, folder, pace=Pace(0), now_ms=stage.clock.wall_ms
    )
