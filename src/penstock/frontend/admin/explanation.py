"""Explains why a receive gets no messages from a queue (``penstock queue explain``).

Each reason has a code for programs and a text for people. Some reasons (``GATES``) stop every
receive: a policy, a rate limit, a missing leader; the others concern some of the messages."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.model.topic import Obstacles, QueueStats

# Codes of reasons that stop every receive, and of messages that the next receive gets.
GATES = frozenset({"denied", "throttled", "unreachable", "in_flight_limit"})
DELIVERED = frozenset({"available", "unexamined"})


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
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
        yield Reason("denied", situation.denied)
    limit = situation.throttled_by
    if limit:
        until_ms = now_ms + situation.throttled_ms
        text = f"requests are throttled: the {limit} limit is used up until {_time(until_ms)}"
        yield Reason("throttled", text, until_ms=until_ms)
    stats = situation.stats
    if stats is None:
        yield Reason("unreachable", situation.unreachable)
        return
    found = stats.obstacles or Obstacles()
    if 0 < found.in_flight_max <= stats.in_flight:
        text = f"the in-flight limit is reached: {stats.in_flight:,} of {found.in_flight_max:,}"
        text += " messages; delete or release some, or raise queue.in_flight_max"
        yield Reason("in_flight_limit", text, stats.in_flight, found.lease_ends_ms)
    if stats.obstacles is None:
        text = "a node of an older version leads part of the queue: only counts are known"
        yield Reason("older_version", text)
    if not (stats.visible or stats.in_flight or stats.delayed):
        yield Reason("empty", "the queue is empty", 0)
    yield from _of_visible(situation, stats.visible, found)
    if stats.in_flight:
        text = f"in flight{_end('lease', found.lease_ends_ms)}"
        yield _counted("in_flight", stats.in_flight, text, until_ms=found.lease_ends_ms)
    if stats.delayed:
        text = f"delayed{_end('delay', found.delay_ends_ms)}"
        yield _counted("delayed", stats.delayed, text, until_ms=found.delay_ends_ms)
    if found.uncommitted:
        yield _counted("unreplicated", found.uncommitted, "not yet replicated to the in-sync set")
    queue = situation.dead_letter_queue
    if stats.dead_lettered:
        name = f" {queue}" if queue else ""
        text = f"moved to the dead-letter queue{name} since the server opened this queue"
        yield _counted("dead_lettered", stats.dead_lettered, text, queue=queue)


def _of_visible(situation: Situation, visible: int, found: Obstacles) -> Iterator[Reason]:
    if found.available:
        yield _counted("available", found.available, "available to the next receive")
    for lock in found.locks:
        yield _counted(
            "blocked",
            lock.blocked,
            f"blocked in group {lock.group}: offset {lock.offset} of partition {lock.partition} is"
            f" in flight until {_time(lock.until_ms)}",
            until_ms=lock.until_ms,
            partition=lock.partition,
            offset=lock.offset,
            group=lock.group,
        )
    others = found.blocked - sum(lock.blocked for lock in found.locks)
    if others > 0:
        groups = found.locked_groups - len(found.locks)
        yield _counted("blocked", others, f"blocked in {groups:,} more groups")
    if found.exhausted:
        queue = situation.dead_letter_queue
        text = f"received {situation.attempts_max} times, the maximum:"
        text += f" will be moved to the dead-letter queue {queue or ''}".rstrip()
        yield _counted("exhausted", found.exhausted, text, queue=queue)
    if found.expired:
        yield _counted("expired", found.expired, "past the retention period, will be deleted")
    rest = visible - found.available - found.blocked - found.exhausted - found.expired
    if rest > 0 and found.is_read_ahead_full:
        text = "not examined: too many earlier messages are blocked or delayed;"
        text += " receive or delete some of those first"
        yield _counted("read_ahead_full", rest, text)
    elif rest > 0:
        yield _counted("unexamined", rest, "not yet examined by a receive")


def _counted(code: str, count: int, text: str, **facts: Any) -> Reason:
    return Reason(code, f"{count:,} message{'' if count == 1 else 's'} {text}", count, **facts)


def _summary(situation: Situation, reasons: tuple[Reason, ...], now_ms: int) -> str:
    for reason in reasons:
        if reason.code in GATES or reason.code == "empty":
            return reason.text
    stats = situation.stats
    assert stats is not None, "an unreachable queue has a reason in GATES"
    found = stats.obstacles or Obstacles()
    parts = []
    if found.blocked:
        lock = found.locks[0]
        groups = f"group {lock.group}"
        if found.locked_groups != 1:
            groups = f"{found.locked_groups:,} groups, most in {lock.group}"
        parts.append(f"{found.blocked:,} blocked in {groups}{_until(lock.until_ms, now_ms)}")
    parts.append(f"{stats.delayed:,} delayed{_until(found.delay_ends_ms, now_ms)}")
    if stats.in_flight:
        parts.append(f"{stats.in_flight:,} in flight{_until(found.lease_ends_ms, now_ms)}")
    free = stats.visible - found.blocked
    if free > 0:
        parts.append(f"{free:,} more visible")
    return ", ".join(parts)


def _until(at_ms: int | None, now_ms: int) -> str:
    return "" if at_ms is None or at_ms <= now_ms else f" until {_time(at_ms)}"


def _end(what: str, at_ms: int | None) -> str:
    return "" if at_ms is None else f": the first {what} ends at {_time(at_ms)}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")
