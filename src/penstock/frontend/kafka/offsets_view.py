"""``__consumer_offsets``: a read-only view of the offsets that the groups of one tenant have
committed, in Apache Kafka's record format.

The records are made from rows of the topic ``__groups`` when they are fetched, so a commit is
stored once. A record of the view has the offset of its row. Partitions, leaders and epochs of the
view are those of ``__groups``. Rows of other kinds and of other tenants are left out. If such
rows come last in a fetch, the reader gets a control batch in their place, which clients skip, so
that its next fetch begins after them. ``docs/adr/0038-consumer-offsets-is-a-view.md`` says why."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.cursor.groups.records import CODEC, OffsetValue, RowKind
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.ports.cluster import GROUPS_TOPIC
from penstock.model.limits import OFFSETS_VIEW_BYTES_MAX
from penstock.model.names import OFFSETS_TOPIC, split_scoped
from penstock.model.ports import Fetched
from penstock.model.topic import Topic
from penstock.net.slices import Slices
from penstock.record.batch import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    BatchHeader,
    parse_header,
    repacked,
    split_batches,
)
from penstock.record.control import KEY, KEY_VERSION, TYPE_COMMIT
from penstock.record.malformed import MalformedBatch
from penstock.record.record import encode_record, iter_records
from penstock.wire.kafka.consumer_records import encode_key, encode_value

# Returns key and value of the view's record for a row, or None if the row is hidden.
Shown = Callable[[bytes, bytes | None], tuple[bytes, bytes | None] | None]
STEP: Final = 64  # rows between two checks of the time slice
ID_BYTES: Final = 16
_OFFSET_ROW: Final = bytes((RowKind.OFFSET,))
# A commit marker without a producer. Clients know this type of control record and skip it.
_SKIPPED: Final = encode_record(
    offset_delta=0, timestamp_delta=0, key=KEY.pack(KEY_VERSION, TYPE_COMMIT), value=bytes(6)
)


def offsets_view(context: KafkaContext) -> Topic | None:
    """Return the view as a topic of the tenant, or None if ``__groups`` does not exist yet."""
    groups = _groups(context)
    if groups is None:
        return None
    place = f"{groups.topic_id}/{context.account}".encode()
    return msgspec.structs.replace(
        groups,
        topic_id=blake2b(place, digest_size=ID_BYTES).hexdigest(),
        account=context.account,
        name=OFFSETS_TOPIC,
    )


def is_offsets_view(topic: Topic) -> bool:
    return topic.name == OFFSETS_TOPIC and not topic.is_queue


def log_of(context: KafkaContext, topic: Topic) -> Topic:
    """Return the topic whose log stores the records: ``__groups`` for the view, else ``topic``."""
    if is_offsets_view(topic):
        return _groups(context) or topic
    return topic


def _groups(context: KafkaContext) -> Topic | None:
    return context.catalog.find(context.config.account, context.config.region, GROUPS_TOPIC)


def bytes_to_read(bytes_max: int) -> int:
    return min(max(bytes_max, 0), OFFSETS_VIEW_BYTES_MAX)


async def as_offsets(context: KafkaContext, fetched: Fetched, slices: Slices) -> Fetched:
    """Convert fetched batches of ``__groups`` to batches of the view."""
    batches: list[bytes] = []
    shown, count = _shown(context), 0
    hidden: list[BatchHeader] = []  # batches since the last one with a visible row
    for batch in split_batches(fetched.buffers):
        header = parse_header(batch)
        records = [] if header.is_control else await _visible(shown, batch, header, slices)
        if not records:
            hidden.append(header)
            continue
        hidden.clear()
        attributes = header.attributes & ~ATTR_CODEC_MASK
        batches.append(repacked(header._replace(attributes=attributes), records))
        count += len(records)
    if hidden:
        first, last = hidden[0].base_offset, hidden[-1]
        span = last.next_offset - first
        skip = last._replace(base_offset=first, attributes=ATTR_CONTROL, last_offset_delta=span - 1)
        batches.append(repacked(skip, (_SKIPPED,)))
    return msgspec.structs.replace(fetched, buffers=batches, record_count=count)


async def _visible(shown: Shown, batch: bytes, header: BatchHeader, slices: Slices) -> list[bytes]:
    """Return the visible rows of a batch as records of the view. A malformed batch has none."""
    records: list[bytes] = []
    try:
        for number, row in enumerate(iter_records(batch), 1):
            if not number % STEP and slices.is_over:
                await slices.next()
            found = shown(row.key or b"", row.value)
            if found is not None:
                records.append(
                    encode_record(
                        offset_delta=row.offset - header.base_offset,
                        timestamp_delta=row.timestamp - header.base_timestamp,
                        key=found[0],
                        value=found[1],
                    )
                )
    except MalformedBatch:
        return []
    return records


def _shown(context: KafkaContext) -> Shown:
    own_account, catalog, view = context.config.account, context.catalog, offsets_view(context)
    names: dict[str, str | None] = {}

    def name_of(topic_id: str) -> str | None:
        """Return the name of a topic, or None if its id is unknown. A deleted topic keeps its name
        for some minutes, so that readers get the tombstones of its offsets."""
        if topic_id not in names:
            topic = catalog.find_id(topic_id) or catalog.tombstone(topic_id)
            if view is not None and view.topic_id == topic_id:
                topic = view
            names[topic_id] = None if topic is None else topic.name
        return names[topic_id]

    def shown(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
        if not key.startswith(_OFFSET_ROW):
            return None
        try:
            _, (scoped_group, topic_id, partition), committed = CODEC.decode(key, value)
        except ValueError:
            return None
        account, group_id = split_scoped(scoped_group, own_account=own_account)
        name = name_of(topic_id) if account == context.account else None
        if name is None:
            return None
        shown_key = encode_key(group_id, name, partition)
        if not isinstance(committed, OffsetValue):
            return shown_key, None
        return shown_key, encode_value(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            committed_at_ms=committed.committed_at_ms,
            topic_id=bytes.fromhex(topic_id),
        )

    return shown
