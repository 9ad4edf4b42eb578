"""The lag of a consumer group, in records and in seconds.

The lag in records is the distance from the committed offset to the end of the partition; leases,
deletions and transaction markers in the log are counted too. The lag in seconds is the age of the
first record that the group has not committed; it shows how long a result is already waiting. It is
read from the record itself, with one small fetch for each partition that has a lag. If the group
never committed, both are unknown.

The offset of a share group is its first record that is not finished. Later records may be finished
as well, so its lag is an upper bound."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.client import Json
from penstock.cli.kafka_client import EARLIEST, LATEST, Kafka, Place, by_topic, check
from penstock.cli.output import Column, duration, is_drawing, rich_table
from penstock.cli.queue_numbers import ticks
from penstock.cli.session import Session
from penstock.record.batch import parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records
from penstock.wire.kafka.faults import ErrorCode

_FETCH = 1
_BY_NAME_MAX = 12  # later versions name topics by id
_LOOK_BYTES = 65_536
UNKNOWN = -1
_LOOKS_MAX = 16  # fetches to get past batches without records, such as lease events

COLUMNS = (
    Column("group", "GROUP"),
    Column("topic", "TOPIC"),
    Column("partition", "PART", is_number=True),
    Column("committed", "COMMITTED", is_number=True),
    Column("end", "END", is_number=True),
    Column("lag", "LAG", is_number=True),
    Column("lag_s", "BEHIND", is_number=True, form=duration),
)


class Standing(NamedTuple):
    """The offsets of a group, and the partitions that its members read now."""

    offsets: Mapping[Place, int]
    assigned: Sequence[Place] = ()


StandingOf = Callable[[str], Standing]


def rows(kafka: Kafka, groups: Iterable[str], standing_of: StandingOf) -> Iterator[Json]:
    for group in groups:
        yield from _rows_of(kafka, group, standing_of(group))


def _rows_of(kafka: Kafka, group: str, standing: Standing) -> list[Json]:
    """Return rows for all partitions of the topics that the group committed for or reads. Without a
    committed offset the lag is unknown, except that an empty partition has none."""
    what = f"cannot tell the lag of group '{group}'"
    known = standing.offsets
    places = sorted(_of_living_topics(kafka, {*known, *standing.assigned}))
    if not places:
        return []
    ends = kafka.offsets(dict.fromkeys(places, LATEST), what=what)
    starts = kafka.offsets(dict.fromkeys(places, EARLIEST), what=what)
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
        made.append(
            {
                "group": group,
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset,
                "end": end,
                "lag": lag,
                "lag_s": lag_s,
            }
        )
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
            check(f"cannot look at topic '{topic.name}'", topic.error_code)
            found |= {Place(topic.name, part.partition_index) for part in topic.partitions}
    return found


def first_record_ms(kafka: Kafka, place: Place, offset: int, end: int) -> int | None:
    """Return the time of the first record at or after an offset; None if there is none before
    ``end``, UNKNOWN if a bounded search has not found it."""
    for _ in range(_LOOKS_MAX):
        data = fetch(kafka, place, offset, bytes_max=_LOOK_BYTES)
        at = 0
        while at < len(data):
            try:
                header = parse_header(data, at)
                batch = data[at : at + header.total_bytes]
                if len(batch) < header.total_bytes:
                    break
                if not header.is_control and header.count and header.next_offset > offset:
                    return _time_in(batch, offset)
            except MalformedBatch:
                break
            offset = max(offset, header.next_offset)
            at += header.total_bytes
        if offset >= end:
            return None
        if at == 0:
            return None if not data else UNKNOWN
    return UNKNOWN


def _time_in(batch: bytes, offset: int) -> int:
    try:
        for record in iter_records(batch):
            if record.offset >= offset:
                return record.timestamp
    except MalformedBatch:
        pass  # the header still has an approximate time
    return parse_header(batch).max_timestamp


def fetch(kafka: Kafka, place: Place, offset: int, *, bytes_max: int, wait_ms: int = 0) -> bytes:
    """Return batches, from the one that holds the offset on; the last one may be cut."""
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
    session: Session,
    groups: Sequence[str],
    standing_of: StandingOf,
    *,
    interval_s: float,
    samples_max: int | None,
) -> None:
    if session.out.is_table and is_drawing(sys.stdout):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            for _ in ticks(interval_s, samples_max):
                cells = [
                    [column.text(row) for column in COLUMNS]
                    for row in rows(session.kafka, groups, standing_of)
                ]
                live.update(rich_table(COLUMNS, cells), refresh=True)
        return
    for _ in ticks(interval_s, samples_max):
        at_ms = int(time.time() * 1_000)
        for row in rows(session.kafka, groups, standing_of):
            text = "  ".join(f"{column.title} {column.text(row)}" for column in COLUMNS)
            session.out.streamed({"at_ms": at_ms, **row}, text=text, name="group")
