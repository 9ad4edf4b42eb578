"""How far a consumer group is behind: in records, and in time.

The lag in records is the distance from the committed offset to the end of the partition; where a
log also keeps leases, deletions or transaction markers, those are counted with it. The lag in
seconds is the age of the first record that the group has not committed, which is what a person
waiting for a result feels. It is read from the record itself: one small fetch for each partition
that has a lag at all.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.cli.client import Json
from penstock.cli.kafka_client import EARLIEST, LATEST, Kafka, Place, by_topic, check
from penstock.cli.output import Column, duration, is_drawing, rich_table
from penstock.cli.queue_numbers import ticks
from penstock.cli.session import Session
from penstock.record.batch import parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records
from penstock.wire.kafka.faults import ErrorCode

_FETCH, _OFFSET_FETCH = 1, 9
_BY_NAME_MAX = 12  # newer fetches name topics by id
_ONE_GROUP_MAX = 7  # newer requests ask for several groups
_LOOK_BYTES = 65_536
_LOOKS_MAX = 16  # past batches without records, such as the lease events of a queue

COLUMNS = (
    Column("group", "GROUP"),
    Column("topic", "TOPIC"),
    Column("partition", "PART", is_number=True),
    Column("committed", "COMMITTED", is_number=True),
    Column("end", "END", is_number=True),
    Column("lag", "LAG", is_number=True),
    Column("lag_s", "BEHIND", is_number=True, form=duration),
)


def committed(kafka: Kafka, group: str) -> dict[Place, int]:
    """All offsets that a group has committed."""
    from penstock.wire.kafka.generated.offset_fetch import OffsetFetchRequest

    what = f"cannot ask for the offsets of group '{group}'"
    node = kafka.coordinator(group, what=what)
    request = OffsetFetchRequest(group_id=group, topics=None)
    reply = kafka.call(_OFFSET_FETCH, request, node=node, version_max=_ONE_GROUP_MAX)
    check(what, reply.error_code)
    found = {}
    for topic in reply.topics:
        for part in topic.partitions:
            check(f"{what}: {topic.name}, {part.partition_index}", part.error_code)
            if part.committed_offset >= 0:
                found[Place(topic.name, part.partition_index)] = part.committed_offset
    return found


def rows(kafka: Kafka, groups: Iterable[str]) -> Iterator[Json]:
    for group in groups:
        yield from _rows_of(kafka, group)


def _rows_of(kafka: Kafka, group: str) -> list[Json]:
    what = f"cannot tell the lag of group '{group}'"
    offsets = _of_living_topics(kafka, committed(kafka, group))
    ends = kafka.offsets(dict.fromkeys(offsets, LATEST), what=what) if offsets else {}
    starts = kafka.offsets(dict.fromkeys(offsets, EARLIEST), what=what) if offsets else {}
    now_ms = int(time.time() * 1_000)
    made = []
    for place, offset in sorted(offsets.items()):
        # What retention has taken is not read any more, so it is no lag either.
        begin = max(offset, starts[place])
        lag = max(0, ends[place] - begin)
        at_ms = first_record_ms(kafka, place, begin, ends[place]) if lag else None
        made.append(
            {
                "group": group,
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": ends[place],
                "lag": lag,
                "lag_s": 0.0 if at_ms is None else max(0, now_ms - at_ms) / 1_000,
            }
        )
    return made


def _of_living_topics(kafka: Kafka, offsets: dict[Place, int]) -> dict[Place, int]:
    """Offsets outlive the topic they were committed for; there is nothing behind them then."""
    found: set[Place] = set()
    for topic in kafka.metadata(sorted(by_topic(offsets))).topics if offsets else ():
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(f"cannot look at topic '{topic.name}'", topic.error_code)
            found |= {Place(topic.name, part.partition_index) for part in topic.partitions}
    return {place: offset for place, offset in offsets.items() if place in found}


def first_record_ms(kafka: Kafka, place: Place, offset: int, end: int) -> int | None:
    """The time of the first record at or behind an offset; None when there is none before
    ``end``, or none within a bounded search."""
    for _ in range(_LOOKS_MAX):
        data = fetch(kafka, place, offset, bytes_max=_LOOK_BYTES)
        at = 0
        while at < len(data):
            try:
                header = parse_header(data, at)
                batch = data[at : at + header.total_bytes]
                if len(batch) < header.total_bytes:
                    break
                if not header.is_control and header.next_offset > offset:
                    return _time_in(batch, offset)
            except MalformedBatch:
                break
            offset = max(offset, header.next_offset)
            at += header.total_bytes
        if at == 0 or offset >= end:
            return None
    return None


def _time_in(batch: bytes, offset: int) -> int:
    try:
        for record in iter_records(batch):
            if record.offset >= offset:
                return record.timestamp
    except MalformedBatch:
        pass  # the header alone still says it nearly
    return parse_header(batch).max_timestamp


def fetch(kafka: Kafka, place: Place, offset: int, *, bytes_max: int, wait_ms: int = 0) -> bytes:
    """Whole batches from the one that holds the offset; a last one may be cut."""
    from penstock.wire.kafka.fetch_request import FetchPartition, FetchRequest, FetchTopic

    def request(places: Sequence[Place]) -> Any:
        ((topic, partition),) = places
        wanted = [FetchPartition(partition, offset, bytes_max)]
        return FetchRequest(
            wait_ms_max=wait_ms,
            bytes_min=1 if wait_ms else 0,
            topics=[FetchTopic(topic, bytes(16), wanted)],
            bytes_max=bytes_max,
        )

    what = f"cannot read {place.topic}, {place.partition}"
    (reply,) = kafka.at_leaders(
        _FETCH, [place], request, what=what, wait_s=wait_ms / 1_000, version_max=_BY_NAME_MAX
    )
    check(what, reply.error_code)
    ((part,),) = [topic.partitions for topic in reply.topics]
    check(what, part.error_code)
    return b"".join(part.records)


def watch(
    session: Session, groups: Sequence[str], *, interval_s: float, samples_max: int | None
) -> None:
    if session.out.is_table and is_drawing(sys.stdout):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            for _ in ticks(interval_s, samples_max):
                cells = [
                    [column.text(row) for column in COLUMNS] for row in rows(session.kafka, groups)
                ]
                live.update(rich_table(COLUMNS, cells), refresh=True)
        return
    for _ in ticks(interval_s, samples_max):
        at_ms = int(time.time() * 1_000)
        for row in rows(session.kafka, groups):
            text = "  ".join(f"{column.title} {column.text(row)}" for column in COLUMNS)
            session.out.streamed({"at_ms": at_ms, **row}, text=text, name="group")
