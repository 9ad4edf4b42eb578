"""Parses positions in a log as users write them: begin, end, an offset, the last N records, a
duration ago, or a time."""

import re
from typing import NamedTuple

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.kafka_client import EARLIEST, LATEST, Kafka, Place

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


def target_of(text: str, now_ms: int, *, what: str, option: str) -> Target:
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
        raise Failure(
            f"{what} '{text}'",
            f"{option} takes begin, end, an offset, -10 (the last ten), -90m (so long ago) or a"
            " time",
            "write a time like 2026-01-31T12:00:00Z",
            exit_code=ExitCode.USAGE,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Target(time=max(0, int(moment.timestamp() * 1_000)))


def offsets_at(
    kafka: Kafka, places: list[Place], target: Target, *, what: str, is_committed: bool = False
) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return for each partition the offset of the target, limited to the log, and the end of the
    log. If no record is as new as a target time, its offset is the end."""
    starts = kafka.offsets(dict.fromkeys(places, EARLIEST), what=what)
    ends = kafka.offsets(dict.fromkeys(places, LATEST), what=what, is_committed=is_committed)
    if target.time is not None:
        found = kafka.offsets(dict.fromkeys(places, target.time), what=what)
        wanted = {place: found[place] if found[place] >= 0 else ends[place] for place in places}
    elif target.last is not None:
        wanted = {place: ends[place] - target.last for place in places}
    else:
        assert target.offset is not None
        wanted = dict.fromkeys(places, target.offset)
    return {place: min(max(wanted[place], starts[place]), ends[place]) for place in places}, ends
