"""Parses positions in a log, and reads and commits offsets of groups without joining them."""

import re
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.cli.clients.kafka import Kafka, failing
from penstock.cli.terminal.failure import Conflict, Misuse
from penstock.net.kafka_client import group_offsets
from penstock.net.kafka_client.client import EARLIEST, LATEST, Place
from penstock.record.batch import BatchHeader, parse_header
from penstock.record.malformed import MalformedBatch

_AGO = re.compile(r"-([0-9]+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NAMES = {"begin": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
_DIGITS_MAX = 18
_IDLE_STATES = frozenset(("empty", "dead"))


class Target(NamedTuple):
    """A position in a log: an ``offset``, a ``time`` in ms, or a number of ``last`` records."""

    offset: int | None = None
    time: int | None = None
    last: int | None = None


def target_of(text: str, *, what: str, option: str, now_ms: int | None = None) -> Target:
    """Parse earliest, latest, an offset, a time, -10 (last 10 records) or -90m (90 minutes ago)."""
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
    """Return a time in ms, or None for earliest and latest. Raises Misuse for an offset."""
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
    kafka: Kafka, places: list[Place], target: Target, *, is_committed: bool = False
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the offset of the target and the end of the log for each partition. An offset outside
    the log is replaced by the nearest offset in it. A time after the last record means the end."""
    starts, ends = kafka.bounds(places, is_committed=is_committed)
    if target.time is not None:
        found = kafka.offsets(dict.fromkeys(places, target.time))
        wanted = {place: found[place] if found[place] >= 0 else ends[place] for place in places}
    elif target.last is not None:
        wanted = {place: ends[place] - target.last for place in places}
    else:
        assert target.offset is not None
        wanted = dict.fromkeys(places, target.offset)
    return {place: min(max(wanted[place], starts[place]), ends[place]) for place in places}, ends


def committed(kafka: Kafka, group: str, *, is_share: bool = False) -> dict[Place, int]:
    """Return the committed offsets of a group. For a share group, return the offset of the first
    unfinished record in each partition."""
    with failing(f"cannot read the offsets of group '{group}'"):
        if is_share:
            starts = group_offsets.share_starts(kafka, group)
            return {place: offset for place, offset in starts.items() if offset >= 0}
        found = group_offsets.committed_offsets(kafka, group)
    return {place: each.offset for place, each in found.items()}


def commit(kafka: Kafka, group: str, offsets: Mapping[Place, int]) -> None:
    wanted = {place: group_offsets.Committed(offset) for place, offset in offsets.items()}
    group_offsets.commit_offsets(kafka, group, wanted)


def check_idle(kafka: Kafka, group: str, *, what: str) -> None:
    """Raise Conflict if the group has members, because its coordinator would reject a commit."""
    for each in kafka.groups([kafka.coordinator(group)]):
        if each.name == group and each.state.lower() not in _IDLE_STATES:
            raise Conflict(
                what,
                f"group '{group}' has members",
                f"stop the members first (see `penstock group show {group}`), or omit --group",
            )


def whole_batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield each complete batch in fetched data with its header, without a partial last batch."""
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
