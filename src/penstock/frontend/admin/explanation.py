"""Why a queue delivers nothing, in words. Pure: ``explain.py`` asks the broker and the policies.

A reason has a code for programs, a sentence for people, and the numbers in it. Gates stop every
receive (a policy, a limit, a missing leader); other reasons say why some messages are not
delivered. The summary is one line for a consumer that has just received nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from penstock.model.topic import GroupLock, Obstacles, QueueStats


class Code(StrEnum):
    # Gates
    DENIED = "denied"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"
    IN_FLIGHT_LIMIT = "in_flight_limit"
    # Why some messages are not delivered
    BLOCKED = "blocked"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"
    READ_AHEAD_FULL = "read_ahead_full"
    UNREPLICATED = "unreplicated"
    # Other facts
    EMPTY = "empty"
    AVAILABLE = "available"
    UNEXAMINED = "unexamined"
    DEAD_LETTERED = "dead_lettered"
    OLDER_VERSION = "older_version"


GATES = frozenset({Code.DENIED, Code.THROTTLED, Code.UNREACHABLE, Code.IN_FLIGHT_LIMIT})
DELIVERED = frozenset({Code.AVAILABLE, Code.UNEXAMINED})


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    code: Code
    text: str
    count: int | None = None  # messages
    until_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    group: str | None = None
    queue: str | None = None


class Situation(msgspec.Struct, frozen=True):
    stats: QueueStats | None = None  # None: ``unreachable`` says why
    unreachable: str = ""
    denied: str = ""  # why the caller may not receive
    throttled_by: str = ""  # the limit that is used up
    throttled_ms: int = 0  # until the next request passes
    attempts_max: int | None = None
    dead_letter_queue: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    is_delivering: bool  # whether a receive gets a message now
    summary: str
    reasons: tuple[Reason, ...]


def explain(situation: Situation, *, now_ms: int) -> Explanation:
    reasons = tuple(_reasons(situation, now_ms))
    codes = {reason.code for reason in reasons}
    is_delivering = codes.isdisjoint(GATES) and not codes.isdisjoint(DELIVERED)
    return Explanation(is_delivering, _summary(situation, reasons, now_ms), reasons)


def _reasons(situation: Situation, now_ms: int) -> Iterator[Reason]:
    if situation.denied:
        yield Reason(Code.DENIED, situation.denied)
    if situation.throttled_by:
        until_ms = now_ms + situation.throttled_ms
        limit = situation.throttled_by
        text = f"requests are throttled: the {limit} limit is used up until {_time(until_ms)}"
        yield Reason(Code.THROTTLED, text, until_ms=until_ms)
    stats = situation.stats
    if stats is None:
        yield Reason(Code.UNREACHABLE, situation.unreachable)
        return
    found = stats.obstacles or Obstacles()
    if 0 < found.in_flight_max <= stats.in_flight:
        text = (
            f"the in-flight limit is reached: {stats.in_flight:,} of {found.in_flight_max:,}"
            " messages; delete or release some, or raise queue.in_flight_max"
        )
        yield Reason(Code.IN_FLIGHT_LIMIT, text, stats.in_flight, found.lease_ends_ms)
    if stats.obstacles is None:
        text = "a node of an older version leads part of the queue: only counts are known"
        yield Reason(Code.OLDER_VERSION, text)
    if not (stats.visible or stats.in_flight or stats.delayed):
        yield Reason(Code.EMPTY, "the queue is empty", 0)
    yield from _of_visible(situation, stats.visible, found)
    if stats.in_flight:
        text = f"{_messages(stats.in_flight)} in flight{_end('lease', found.lease_ends_ms)}"
        yield Reason(Code.IN_FLIGHT, text, stats.in_flight, found.lease_ends_ms)
    if stats.delayed:
        text = f"{_messages(stats.delayed)} delayed{_end('delay', found.delay_ends_ms)}"
        yield Reason(Code.DELAYED, text, stats.delayed, found.delay_ends_ms)
    if found.uncommitted:
        text = f"{_messages(found.uncommitted)} not yet replicated to the in-sync set"
        yield Reason(Code.UNREPLICATED, text, found.uncommitted)
    if stats.dead_lettered:
        queue = situation.dead_letter_queue
        text = (
            f"{_messages(stats.dead_lettered)} moved to the dead-letter queue"
            f"{f' {queue}' if queue else ''} since the server opened this queue"
        )
        yield Reason(Code.DEAD_LETTERED, text, stats.dead_lettered, queue=queue)


def _of_visible(situation: Situation, visible: int, found: Obstacles) -> Iterator[Reason]:
    if found.available:
        text = f"{_messages(found.available)} available to the next receive"
        yield Reason(Code.AVAILABLE, text, found.available)
    for lock in found.locks:
        yield _locked(lock)
    shown = sum(lock.blocked for lock in found.locks)
    if found.blocked > shown:
        groups = found.locked_groups - len(found.locks)
        text = f"{_messages(found.blocked - shown)} blocked in {groups:,} more groups"
        yield Reason(Code.BLOCKED, text, found.blocked - shown)
    if found.exhausted:
        queue = situation.dead_letter_queue
        text = (
            f"{_messages(found.exhausted)} received {situation.attempts_max} times, the maximum:"
            f" will be moved to the dead-letter queue {queue or ''}".rstrip()
        )
        yield Reason(Code.EXHAUSTED, text, found.exhausted, queue=queue)
    if found.expired:
        text = f"{_messages(found.expired)} past the retention period, will be deleted"
        yield Reason(Code.EXPIRED, text, found.expired)
    examined = found.available + found.blocked + found.exhausted + found.expired
    rest = visible - examined
    if rest > 0 and found.is_read_ahead_full:
        text = (
            f"{_messages(rest)} not examined: too many earlier messages are blocked or delayed;"
            " receive or delete some of those first"
        )
        yield Reason(Code.READ_AHEAD_FULL, text, rest)
    elif rest > 0:
        text = f"{_messages(rest)} not yet examined by a receive"
        yield Reason(Code.UNEXAMINED, text, rest)


def _locked(lock: GroupLock) -> Reason:
    text = (
        f"{_messages(lock.blocked)} blocked in group {lock.group}: offset {lock.offset} of"
        f" partition {lock.partition} is in flight until {_time(lock.until_ms)}"
    )
    return Reason(
        Code.BLOCKED,
        text,
        lock.blocked,
        lock.until_ms,
        partition=lock.partition,
        offset=lock.offset,
        group=lock.group,
    )


def _summary(situation: Situation, reasons: tuple[Reason, ...], now_ms: int) -> str:
    for reason in reasons:
        if reason.code in GATES or reason.code is Code.EMPTY:
            return reason.text
    stats = situation.stats
    assert stats is not None, "an unreachable queue has a gate"
    found = stats.obstacles or Obstacles()
    parts = []
    if found.blocked:
        parts.append(_blocked(found, now_ms))
    parts.append(f"{stats.delayed:,} delayed{_until(found.delay_ends_ms, now_ms)}")
    if stats.in_flight:
        parts.append(f"{stats.in_flight:,} in flight{_until(found.lease_ends_ms, now_ms)}")
    free = stats.visible - found.blocked
    if free > 0:
        parts.append(f"{free:,} more visible")
    return ", ".join(parts)


def _blocked(found: Obstacles, now_ms: int) -> str:
    lock = found.locks[0]
    if found.locked_groups == 1:
        where = f"group {lock.group}"
    else:
        where = f"{found.locked_groups:,} groups, most in {lock.group}"
    return f"{found.blocked:,} blocked in {where}{_until(lock.until_ms, now_ms)}"


def _until(at_ms: int | None, now_ms: int) -> str:
    """Return `` until TIME``, or nothing if the time is over."""
    return "" if at_ms is None or at_ms <= now_ms else f" until {_time(at_ms)}"


def _end(what: str, at_ms: int | None) -> str:
    return "" if at_ms is None else f": the first {what} ends at {_time(at_ms)}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
