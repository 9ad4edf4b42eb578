"""Parses positions in a log, and reads and commits offsets of consumer groups without joining."""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock.cli.clients.kafka import Kafka, check
from penstock.cli.terminal.failure import Conflict, Misuse
from penstock.net.kafka_client.client import EARLIEST, LATEST, Place, by_topic
from penstock.record.batch import BatchHeader, parse_header
from penstock.record.malformed import MalformedBatch

_AGO = re.compile(r"-([0-9]+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NAMES = {"begin": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
_DIGITS_MAX = 18
_OFFSET_COMMIT, _OFFSET_FETCH, _DESCRIBE_SHARE_OFFSETS = 8, 9, 90
_COMMIT_BY_NAME_MAX = 9  # later versions identify topics by id
_ONE_GROUP_MAX = 7  # later versions ask for several groups
_IDLE_STATES = frozenset(("empty", "dead"))


class Target(NamedTuple):
    """A position in a log: an ``offset``, a ``time`` in ms, or a number of ``last`` records."""

    offset: int | None = None
    time: int | None = None
    last: int | None = None


def target_of(text: str, *, what: str, option: str, now_ms: int | None = None) -> Target:
    """Parse begin, end, an offset, a time, -10 (the last 10 records) or -90m (90 minutes ago)."""
    now_ms = int(time.time() * 1_000) if now_ms is None else now_ms
    if text in _NAMES:
        return Target(time=_NAMES[text])
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX:
        return Target(last=int(digits)) if text.startswith("-") else Target(offset=int(text))
    ago = _AGO.match(text)
    if ago is not None:
        return Target(time=max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1_000))
    from datetime import UTC, datetime

    try:
        if "-" not in text:  # a number with many digits would be parsed as a date
            raise ValueError(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f"{what} '{text}'",
            f"{option} takes earliest, latest, an offset, -10 (the last 10 records), -90m"
            " (90 minutes ago) or a time",
            "write a time like 2026-01-31T12:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Target(time=max(0, int(moment.timestamp() * 1_000)))


def time_of(text: str | None, *, what: str, option: str) -> int | None:
    """Parse a time in ms. Returns None for begin and end, and raises Misuse for an offset."""
    if text is None:
        return None
    target = target_of(text, what=what, option=option)
    if target.time is None:
        raise Misuse(
            f"cannot use {option} '{text}'",
            "this is an offset or a number of records, not a time",
            "write a time like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago",
        )
    return None if target.time in (EARLIEST, LATEST) else target.time


def offsets_at(
    kafka: Kafka, places: list[Place], target: Target, *, what: str, is_committed: bool = False
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the offset of the target and the end of the log for each partition. An offset outside
    the log becomes its nearest end. A time after the last record means the end."""
    starts, ends = kafka.bounds(places, what=what, is_committed=is_committed)
    if target.time is not None:
        found = kafka.offsets(dict.fromkeys(places, target.time), what=what)
        wanted = {place: found[place] if found[place] >= 0 else ends[place] for place in places}
    elif target.last is not None:
        wanted = {place: ends[place] - target.last for place in places}
    else:
        assert target.offset is not None
        wanted = dict.fromkeys(places, target.offset)
    return {place: min(max(wanted[place], starts[place]), ends[place]) for place in places}, ends


def _checked(topics: Any, what: str, name: str = "name") -> Iterator[tuple[Place, Any]]:
    for topic in topics:
        for part in topic.partitions:
            place = Place(getattr(topic, name), part.partition_index)
            check(f"{what}: {place.topic}, partition {place.partition}", part.error_code)
            yield place, part


def committed(kafka: Kafka, group: str) -> dict[Place, int]:
    from penstock.wire.kafka.generated.offset_fetch import OffsetFetchRequest

    what = f"cannot read the offsets of group '{group}'"
    node = kafka.coordinator(group, what=what)
    request = OffsetFetchRequest(group_id=group, topics=None)
    reply = kafka.call(_OFFSET_FETCH, request, node=node, version_max=_ONE_GROUP_MAX)
    check(what, reply.error_code)
    found = _checked(reply.topics, what)
    return {place: part.committed_offset for place, part in found if part.committed_offset >= 0}


def share_starts(kafka: Kafka, group: str) -> dict[Place, int]:
    """Return the offset of the first record per partition that a share group has not finished."""
    from penstock.wire.kafka.generated import describe_share_group_offsets as api

    what = f"cannot read the offsets of group '{group}'"
    node = kafka.coordinator(group, what=what)
    groups = [api.DescribeShareGroupOffsetsRequestGroup(group, None)]
    request = api.DescribeShareGroupOffsetsRequest(groups=groups)
    (reply,) = kafka.call(_DESCRIBE_SHARE_OFFSETS, request, node=node).groups
    check(what, reply.error_code, reply.error_message)
    found = _checked(reply.topics, what, "topic_name")
    return {place: part.start_offset for place, part in found if part.start_offset >= 0}


def commit(kafka: Kafka, group: str, offsets: Mapping[Place, int], *, what: str) -> None:
    """Commit offsets of a group. The coordinator rejects this while the group has members."""
    from penstock.wire.kafka.generated import offset_commit as api

    topics = [
        api.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                api.OffsetCommitRequestPartition(place.partition, offset)
                for place, offset in offsets.items()
                if place.topic == topic
            ],
        )
        for topic in by_topic(offsets)
    ]
    request = api.OffsetCommitRequest(group_id=group, topics=topics)
    node = kafka.coordinator(group, what=what)
    reply = kafka.call(_OFFSET_COMMIT, request, node=node, version_max=_COMMIT_BY_NAME_MAX)
    for _ in _checked(reply.topics, what):
        pass


def check_idle(kafka: Kafka, group: str, *, what: str) -> None:
    """Raise Conflict if the group has members, because its coordinator would reject a commit."""
    node = kafka.coordinator(group, what=what)
    for each in kafka.groups([node], what=what):
        if each.name == group and each.state.lower() not in _IDLE_STATES:
            raise Conflict(
                what,
                f"group '{group}' has members",
                f"stop the members first (see `penstock group show {group}`), or omit --group",
            )


def whole_batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the complete batches of a fetch, without a last batch that is cut off."""
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
