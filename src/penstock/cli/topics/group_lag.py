"""The lag of a consumer group, in records and in seconds.

The lag in records is the distance from the committed offset to the end of the partition; leases,
deletions and transaction markers in the log are counted too. The lag in seconds is the age of the
first record that the group has not committed; it shows how long a result is already waiting. It is
read from the record itself, with one small fetch for each partition that has a lag. If the group
never committed, both are unknown.

The offset of a share group is its first record that is not finished. Later records may be finished
as well, so its lag is an upper bound."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.cli.clients.http import Json
from penstock.cli.clients.kafka import Kafka, Place, by_topic, check, failing
from penstock.cli.terminal.output import columns
from penstock.record.batch import BatchHeader, parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records
from penstock.wire.kafka.faults import ErrorCode

_LOOK_BYTES = 65_536
UNKNOWN = -1
_LOOKS_MAX = 16  # fetches to get past batches without records, such as lease events

COLUMNS = columns("group, topic, partition# PART, committed#, end#, lag#, lag_s# BEHIND")


class Progress(NamedTuple):
    """The offsets of a group, and the partitions that its members read now."""

    offsets: Mapping[Place, int]
    assigned: Sequence[Place] = ()


def rows_of(kafka: Kafka, group: str, progress: Progress) -> list[Json]:
    """Return rows for all partitions of the topics that the group committed for or reads. Without a
    committed offset the lag is unknown, except that an empty partition has none."""
    what = f"cannot read the lag of group '{group}'"
    known = progress.offsets
    places = sorted(_of_living_topics(kafka, {*known, *progress.assigned}))
    if not places:
        return []
    starts, ends = kafka.bounds(places, what=what)
    now_ms = int(time.time() * 1_000)
    made = []
    for place in places:
        offset, end = known.get(place), ends[place]
        lag: int | None = None
        lag_s: float | None = None
        if offset is not None:
            # Records that retention has removed will not be read any more, so they are not lag.
            begin = max(offset, starts[place])
            lag = max(0, end - begin)
            lag_s = _seconds_behind(kafka, place, begin, end, now_ms) if lag else 0.0
        elif starts[place] == end:
            lag, lag_s = 0, 0.0
        row = {"group": group, **place._asdict(), "committed": offset, "end": end}
        made.append({**row, "lag": lag, "lag_s": lag_s})
    return made


def _seconds_behind(kafka: Kafka, place: Place, begin: int, end: int, now_ms: int) -> float | None:
    at_ms = first_record_ms(kafka, place, begin, end)
    if at_ms == UNKNOWN:
        return None
    # Only markers and lease events up to the end: no consumer waits for those.
    return 0.0 if at_ms is None else max(0, now_ms - at_ms) / 1_000


def _of_living_topics(kafka: Kafka, named: set[Place]) -> set[Place]:
    """Return all partitions of the topics named. Topics that no longer exist are left out:
    committed offsets outlive their topic."""
    found: set[Place] = set()
    for topic in kafka.metadata(sorted(by_topic(named))).topics if named else ():
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(f"cannot read topic '{topic.name}'", topic.error_code)
            found |= {Place(topic.name, part.partition_index) for part in topic.partitions}
    return found


def first_record_ms(kafka: Kafka, place: Place, offset: int, end: int) -> int | None:
    """Return the time of the first record at or after an offset; None if there is none before
    ``end``, UNKNOWN if a bounded search has not found it."""
    for _ in range(_LOOKS_MAX):
        data = _fetch(kafka, place, offset)
        is_empty = True
        for header, batch in whole_batches(data):
            is_empty = False
            if not header.is_control and header.count and header.next_offset > offset:
                return _time_in(batch, offset)
            offset = max(offset, header.next_offset)
        if offset >= end:
            return None
        if is_empty:
            return None if not data else UNKNOWN
    return UNKNOWN


def whole_batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the whole batches of a fetch. The last one may be cut: it is fetched again."""
    at = 0
    while at < len(data):
        try:
            header = parse_header(data, at)
        except MalformedBatch:
            return
        batch = data[at : at + header.total_bytes]
        if len(batch) < header.total_bytes:
            return
        yield header, batch
        at += len(batch)


def _time_in(batch: bytes, offset: int) -> int:
    try:
        for record in iter_records(batch):
            if record.offset >= offset:
                return record.timestamp
    except MalformedBatch:
        pass  # the header still has an approximate time
    return parse_header(batch).max_timestamp


def _fetch(kafka: Kafka, place: Place, offset: int) -> bytes:
    """Return batches, from the one that holds the offset on; the last one may be cut."""
    what = f"cannot read {place.topic}/{place.partition}"
    with failing(what):
        part = kafka.client.fetch(
            {place: offset},
            wait_ms=0,
            bytes_min=0,
            bytes_max=_LOOK_BYTES,
            partition_bytes_max=_LOOK_BYTES,
            is_committed=False,
        )[place]
    check(what, part.error_code)
    return bytes(part.records)
