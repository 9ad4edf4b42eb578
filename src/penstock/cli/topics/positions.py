"""Parses positions in a log as users write them: begin, end, an offset, the last N records, a
duration ago, or a time."""

import re
import time
from typing import NamedTuple

from penstock.cli.clients.kafka import EARLIEST, LATEST, Kafka, Place
from penstock.cli.terminal.failure import Misuse

_AGO = re.compile(r"-([0-9]+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NAMES = {"begin": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
_DIGITS_MAX = 18


class Target(NamedTuple):
    """A position: an ``offset``, the offset at ``time`` (which may be EARLIEST or LATEST), or
    ``last`` records before the end."""

    offset: int | None = None
    time: int | None = None
    last: int | None = None


def target_of(text: str, *, what: str, option: str, now_ms: int | None = None) -> Target:
    """Parse a position. Raises Failure with ``what`` and the text."""
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
        if "-" not in text:  # a too long number would be parsed as a date
            raise ValueError(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f"{what} '{text}'",
            f"{option} takes begin, end, an offset, -10 (the last 10 records), -90m (90 minutes"
            " ago) or a time",
            "write a time like 2026-01-31T12:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Target(time=max(0, int(moment.timestamp() * 1_000)))


def time_of(text: str | None, *, what: str, option: str) -> int | None:
    """Parse a time in ms; None: without a bound. Raises Failure for a position that is not a
    time."""
    if text is None:
        return None
    target = target_of(text, what=what, option=option)
    if target.time is None:
        raise Misuse(
            f"cannot use {option} '{text}'",
            "it is a position in a log, not a time",
            "write a time like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago",
        )
    return None if target.time in (EARLIEST, LATEST) else target.time


def offsets_at(
    kafka: Kafka, places: list[Place], target: Target, *, what: str, is_committed: bool = False
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return for each partition the offset of the target, limited to the log, and the end of the
    log. If no record is as new as a target time, its offset is the end."""
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
