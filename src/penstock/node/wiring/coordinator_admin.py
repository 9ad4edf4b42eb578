"""Lets operators look at a row (record) that a group or transaction coordinator cannot read in its
log, and skip this row.

Any node can do this, because it reads the log from the leader of the partition. A skip is written
to the topic's entry in the catalog, which all nodes watch. Then the coordinator, and every later
leader of the partition, reads the log without the row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from penstock.broker.coordination.groups import TOPIC_NAME as GROUPS_TOPIC
from penstock.broker.coordination.row_log import PlacedRow, RowLog, RowUnreadable, digest_of
from penstock.broker.coordination.transactions import TOPIC_NAME as TRANSACTIONS_TOPIC
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.rows import Row
from penstock.cursor.transactions import Transactions
from penstock.frontend.admin.ports import CoordinatorLog, ShownRow
from penstock.model.calls import BrokerPort
from penstock.model.errors import Conflict, NotFound, QuotaExceeded
from penstock.model.limits import SKIPPED_ROWS_MAX
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import SkippedRow, Topic

TOPICS = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)
SHOWN_BYTES_MAX = 1_024  # of a key or value


@dataclass(frozen=True, slots=True)
class CoordinatorAdmin:
    """Implements ``frontend.admin.ports.CoordinatorPort``."""

    _catalog: Catalog
    _broker: BrokerPort  # reaches the partitions of all nodes
    _clock: Clock
    _namespace: tuple[str, str]  # account and region

    async def show(self, topic: str, partition: int, offset: int | None) -> CoordinatorLog:
        found = self._find(topic, partition)
        log, _ = await self._read(found, partition)
        if offset is None:
            return log
        row = await self._row_at(found, partition, offset)
        if row is None:
            raise NotFound(
                f"{topic}/{partition} has no row at offset {offset}; its offsets go from"
                f" {log.start_offset} to {log.end_offset - 1}."
            )
        return msgspec.structs.replace(log, row=_shown(row))

    async def skip(self, topic: str, partition: int, offset: int) -> CoordinatorLog:
        log, unreadable = await self._read(self._find(topic, partition), partition)
        if unreadable is None:
            raise Conflict(f"All rows of {topic}/{partition} are readable: there is none to skip.")
        if unreadable.offset != offset:
            raise Conflict(
                f"The unreadable row of {topic}/{partition} is at offset {unreadable.offset}, not"
                f" {offset}; only that row can be skipped."
            )
        if unreadable.row is None:
            raise Conflict(
                f"The batch at offset {offset} of {topic}/{partition} holds several rows that"
                " cannot be distinguished, so none of them can be skipped: restore a backup."
            )
        skipped = SkippedRow(partition, offset, digest_of(unreadable.row))
        changed = await self._catalog.change(
            *self._namespace,
            topic,
            partial(_with_skipped, skipped, log.start_offset, self._clock.wall_ms()),
        )
        after, _ = await self._read(changed, partition)
        return after

    def _find(self, name: str, partition: int) -> Topic:
        topic = self._catalog.find(*self._namespace, name) if name in TOPICS else None
        if topic is None:
            known = " or ".join(TOPICS)
            raise NotFound(f"There is no coordinator topic {name}; expected {known}.")
        if partition >= topic.partition_count:
            raise NotFound(f"{name} only has partitions 0 to {topic.partition_count - 1}.")
        return topic

    async def _read(
        self, topic: Topic, partition: int
    ) -> tuple[CoordinatorLog, RowUnreadable | None]:
        log = RowLog(self._broker, topic, partition, self._clock)
        start, end = await log.ends()
        unreadable: RowUnreadable | None = None
        # Replays into a new state, as the coordinator does.
        replay_row: Callable[[bytes, bytes | None], object] = Transactions(
            coordinator_epoch=0
        ).replay
        if topic.name == GROUPS_TOPIC:
            replay_row = partial(Groups(GroupSettings()).replay, now_ms=self._clock.mono_ms())
        try:
            await log.replay(start, end, lambda row: replay_row(row.key, row.value))
        except RowUnreadable as error:
            unreadable = error
        skipped = [one for one in topic.skipped_rows if one.partition == partition]
        shown = None
        if unreadable is not None:
            shown = _shown(_placed(unreadable), unreadable.reason)
        return CoordinatorLog(topic.name, partition, start, end, shown, skipped), unreadable

    async def _row_at(self, topic: Topic, partition: int, offset: int) -> PlacedRow | None:
        plain = msgspec.structs.replace(topic, skipped_rows=())
        log = RowLog(self._broker, plain, partition, self._clock)
        start, end = await log.ends()
        if not start <= offset < end:
            return None
        try:
            async for rows in log.read(offset, offset + 1):
                return rows[0] if rows else None
        except RowUnreadable as error:
            return _placed(error)
        return None


def _with_skipped(new: SkippedRow, start_offset: int, now_ms: int, topic: Topic) -> Topic:
    """Add ``new`` to the topic's skipped rows, and remove skipped rows no longer in the log."""
    kept = [
        one
        for one in topic.skipped_rows
        if one.partition != new.partition or one.offset >= start_offset
    ]
    if len(kept) >= SKIPPED_ROWS_MAX:
        raise QuotaExceeded(
            f"{topic.name} has the maximum of {len(kept)} skipped rows; restore a backup."
        )
    return msgspec.structs.replace(topic, skipped_rows=(*kept, new), modified_at_ms=now_ms)


def _shown(placed: PlacedRow, reason: str | None = None) -> ShownRow:
    (key, value) = placed.row
    return ShownRow(
        placed.offset,
        key[:SHOWN_BYTES_MAX].hex(),
        None if value is None else value[:SHOWN_BYTES_MAX].hex(),
        len(key),
        len(value or b""),
        digest_of(placed.row),
        reason,
    )


def _placed(error: RowUnreadable) -> PlacedRow:
    return PlacedRow(error.offset, Row(b"", None) if error.row is None else error.row)
