"""Handlers of ``/api/v1/queues``, ``/metrics`` and ``/metrics/objects``: queues with their message
counts, explanations of why a receive gets no messages, and metrics for Prometheus. Long lists of
queues are read in pieces, so that a scrape does not delay messages."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.frontend.admin.messages import RECEIVE
from penstock.frontend.admin.request import READ, Call, Context, large_reply, picked
from penstock.model.calls import Stats
from penstock.model.errors import InvalidRequest, NotLeader, Overloaded, TopicNotFound
from penstock.model.identity import Caller
from penstock.model.topic import Obstacles, QueueStats, Topic
from penstock.net.http.exchange import HttpReply
from penstock.net.slices import in_slices
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.telemetry.metrics import CONTENT_TYPE, render_samples

QUEUES_MAX = 1_000  # in one reply; the parameter ``after`` requests the next page
QUEUES_AT_ONCE = 32  # about a millisecond of the event loop
OBJECTS_MAX = 10_000  # queues in one reply: about 100,000 lines
Counted = tuple[Topic, QueueStats]
Shown = dict[str, object]
Sources = dict[str, list[str]]  # ARNs of source queues, by the ARN of their dead-letter queue
Samples = Iterator[tuple[Family, Sample]]
STATES = ("visible", "in_flight", "delayed")
# Codes of reasons that stop every receive, and of messages that the next receive gets.
GATES = frozenset({"denied", "throttled", "unreachable", "in_flight_limit"})
DELIVERED = frozenset({"available", "unexamined"})


def select(call: Call) -> Sequence[Topic]:
    account, region, prefix = call.text("account"), call.text("region"), call.text("prefix")
    catalog = call.context.catalog
    if account and region:
        return catalog.topics(account, region, prefix)
    found = (topic for topic in catalog.all_topics() if topic.name.startswith(prefix))
    found = (topic for topic in found if account in ("", topic.account))
    return sorted((topic for topic in found if region in ("", topic.region)), key=_full_name)


async def read_stats(context: Context, topics: Sequence[Topic]) -> AsyncIterator[Counted]:
    for start in range(0, len(topics), QUEUES_AT_ONCE):
        page = topics[start : start + QUEUES_AT_ONCE]
        calls = (context.broker.call(Stats(each)) for each in page)
        found = await asyncio.gather(*calls, return_exceptions=True)
        for topic, stats in zip(page, found, strict=True):
            if isinstance(stats, QueueStats):
                yield topic, stats
            elif not isinstance(stats, TopicNotFound):
                raise stats


async def many(call: Call) -> Any:
    limit = call.number("limit", default=QUEUES_MAX, least=1, most=QUEUES_MAX)
    topics = select(call)
    after = call.text("after")
    if after:
        parts = tuple(after.split("/"))
        if len(parts) != 3:
            raise InvalidRequest("Parameter 'after' must be the 'next' value of an earlier reply.")
        topics = [topic for topic in topics if _full_name(topic) > parts]
    page = topics[:limit]
    sources = _sources(call.context.catalog.all_topics())
    now_ms = call.now_ms
    found = read_stats(call.context, page)
    queues = [_summary(topic, stats, sources, now_ms=now_ms) async for topic, stats in found]
    next_ = "/".join(_full_name(page[-1])) if len(topics) > len(page) else None
    return {"queues": queues, "next": next_}


async def one(call: Call) -> Any:
    topic = call.queue()
    stats = await call.context.broker.call(Stats(topic))
    sources = _sources(call.context.catalog.all_topics())
    return {
        **_summary(topic, stats, sources, now_ms=call.now_ms),
        "settings": msgspec.structs.asdict(topic.settings),
        **picked(topic, "tags", "fsync", "dedup_scope"),
    }


async def rotate(call: Call) -> Any:
    topic = call.topic(call.context.everything, call.path[3])
    if call.context.sealing is None:
        raise InvalidRequest("Encryption is not configured on this node.")
    await call.context.sealing.rotate(topic)
    return picked(topic, "name", "account", "region")


def _summary(topic: Topic, stats: QueueStats, sources: Sources, *, now_ms: int) -> Shown:
    redrive = topic.settings.redrive
    counts = msgspec.structs.asdict(stats)
    del counts["obstacles"]
    oldest_at_ms = stats.oldest_sent_at_ms
    counts["oldest_age_ms"] = None if oldest_at_ms is None else max(0, now_ms - oldest_at_ms)
    return {
        **picked(topic, "name", "account", "region", "arn", "topic_id", "kind"),
        **picked(topic, "partition_count", "created_at_ms", "modified_at_ms"),
        "dead_letter_target": None if redrive is None else redrive.target_arn,
        "attempts_max": None if redrive is None else redrive.attempts_max,
        "sources": sources.get(topic.arn, []),
        "stats": counts,
    }


def _sources(topics: Iterable[Topic]) -> Sources:
    sources: Sources = {}
    for topic in sorted(topics, key=lambda topic: topic.arn):
        if topic.settings.redrive is not None:
            sources.setdefault(topic.settings.redrive.target_arn, []).append(topic.arn)
    return sources


def _full_name(topic: Topic) -> tuple[str, ...]:
    return topic.account, topic.region, topic.name


# ── Why a receive gets no messages (``penstock queue explain``) ──────────────────────────────
# Each reason has a code for programs and a text for people. Some (``GATES``) stop every receive: a
# policy, a rate limit, a missing leader; the others concern some of the messages.


async def explained(call: Call) -> Any:
    topic = call.queue()
    consumer = call.caller  # whose policies and limits apply
    if "user" in call.query:
        user = call.known_user(topic.account, call.text("user"), READ)
        consumer = Caller(topic.account, user.name, is_operator=user.is_operator)
    redrive, stats, unreachable, context = topic.settings.redrive, None, "", call.context
    limit, throttled_ms, attempts_max, queue = "", 0, None, None
    if context.throttler is not None and context.identities is not None:
        tenant, now_ms = context.identities.tenant(consumer.account), context.clock.mono_ms()
        find = context.throttler.wait
        throttled_ms, limit = find(tenant, consumer, RECEIVE, topic.arn, now_ms=now_ms)
    denied = _denied(call, topic, consumer)
    try:
        stats = await context.broker.call(Stats(topic, is_detailed=True))
    except NotLeader as error:  # an unreachable node or partition is a reason as well
        unreachable = f"partition {error.place.rpartition('/')[2]} has no leader: its messages wait"
        unreachable += " until a node leads it; see `penstock cluster status`"
    except Overloaded as error:
        unreachable = f"the queue cannot be reached: {error}"
    if redrive is not None:
        attempts_max, queue = redrive.attempts_max, redrive.target_arn.rpartition(":")[2]
    reasons = (unreachable, denied, limit, throttled_ms, attempts_max, queue)
    found = explain(Situation(stats, *reasons), now_ms=call.now_ms)
    shown = {"queue": topic.name, **msgspec.structs.asdict(found)}
    if stats is not None:
        shown |= picked(stats, *STATES)
        shown["blocked"] = None if stats.obstacles is None else stats.obstacles.blocked
        shown["waits"] = stats.waits
    return shown


def _denied(call: Call, topic: Topic, consumer: Caller) -> str:
    if consumer.is_trusted or consumer.account != topic.account or call.context.decisions is None:
        return ""  # an operator who inspects the queue of another tenant does not receive from it
    decision = call.decision(consumer, RECEIVE, topic.arn, topic)
    if decision.is_allowed:
        return ""
    policy = f"the {decision.source}-based policy denies it"
    reason = policy if decision.is_explicit else "no policy allows it"
    return f"{consumer.user} may not perform {RECEIVE} on {topic.arn}: {reason}"


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
    return Explanation(is_delivering, _overview(situation, reasons, now_ms), reasons)


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
    yield from _counted("available", found.available, "available to the next receive")
    for lock in found.locks:
        text = f"blocked in group {lock.group}: offset {lock.offset} of partition {lock.partition}"
        text += f" is in flight until {_time(lock.until_ms)}"
        facts = picked(lock, "until_ms", "partition", "offset", "group")
        yield from _counted("blocked", lock.blocked, text, **facts)
    others = found.blocked - sum(lock.blocked for lock in found.locks)
    groups = found.locked_groups - len(found.locks)
    yield from _counted("blocked", others, f"blocked in {groups:,} more groups")
    queue = situation.dead_letter_queue
    name = f" {queue}" if queue else ""
    text = f"received {situation.attempts_max} times, the maximum: will be moved to the dead-letter"
    yield from _counted("exhausted", found.exhausted, f"{text} queue{name}", queue=queue)
    yield from _counted("expired", found.expired, "past the retention period, will be deleted")
    rest = stats.visible - found.available - found.blocked - found.exhausted - found.expired
    if found.is_read_ahead_full:
        text = "not examined: too many earlier messages are blocked or delayed;"
        yield from _counted(
            "read_ahead_full", rest, f"{text} receive or delete some of those first"
        )
    else:
        yield from _counted("unexamined", rest, "not yet examined by a receive")
    at_ms = found.lease_ends_ms
    yield from _counted("in_flight", stats.in_flight, f"in flight{_end('lease', at_ms)}", at_ms)
    at_ms = found.delay_ends_ms
    yield from _counted("delayed", stats.delayed, f"delayed{_end('delay', at_ms)}", at_ms)
    text = "not yet replicated to the in-sync set"
    yield from _counted("unreplicated", found.uncommitted, text)
    text = f"moved to the dead-letter queue{name} since the server opened this queue"
    yield from _counted("dead_lettered", stats.dead_lettered, text, queue=queue)


def _counted(
    code: str, count: int, text: str, until_ms: int | None = None, **facts: Any
) -> Iterator[Reason]:
    if count > 0:
        text = f"{count:,} message{'' if count == 1 else 's'} {text}"
        yield Reason(code, text, count, until_ms, **facts)


def _overview(situation: Situation, reasons: tuple[Reason, ...], now_ms: int) -> str:
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
        parts.append(f"{free:,} {'more ' if found.blocked else ''}visible")
    return ", ".join(parts)


def _until(at_ms: int | None, now_ms: int) -> str:
    return "" if at_ms is None or at_ms <= now_ms else f" until {_time(at_ms)}"


def _end(what: str, at_ms: int | None) -> str:
    return "" if at_ms is None else f": the first {what} ends at {_time(at_ms)}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")


# ── Metrics ──────────────────────────────────────────────────────────────────────────────────


async def totals(call: Call) -> HttpReply:
    context = call.context
    topics = context.catalog.all_topics()
    sums: Counter[str] = Counter()
    now_ms = oldest_at_ms = call.now_ms
    async for _, stats in read_stats(context, topics):
        for name in (*STATES, "waits", "log_bytes"):
            sums[name] += getattr(stats, name)
        if stats.oldest_sent_at_ms is not None:
            oldest_at_ms = min(oldest_at_ms, stats.oldest_sent_at_ms)
    samples: list[tuple[Family, Sample]] = [
        (families.READY, ((), int(context.health.is_ready))),
        (families.START_TIME, ((), context.info.started_at_ms / 1_000)),
        (families.QUEUES, ((), len(topics))),
        *((families.QUEUE_MESSAGES, ((state,), sums[state])) for state in STATES),
        (families.QUEUE_OLDEST_AGE, ((), (now_ms - oldest_at_ms) / 1_000)),
        (families.LOG_SIZE, ((), sums["log_bytes"])),
        (families.WAITS, ((), sums["waits"])),
        *context.health.samples(),
    ]
    return HttpReply(200, context.meter.render(samples), CONTENT_TYPE)


async def objects(call: Call) -> HttpReply:
    if call.text("kind", "queue") != "queue":
        raise InvalidRequest("Parameter 'kind' must be 'queue'.")
    topics = select(call)
    if len(topics) > OBJECTS_MAX:
        text = f"{len(topics)}, but at most {OBJECTS_MAX} are allowed"
        raise InvalidRequest(f"Too many queues match ({text}): use a longer prefix.")
    now_ms = call.now_ms
    by_family: dict[Family, list[Sample]] = {}
    async for topic, stats in read_stats(call.context, topics):
        for family, sample in _queue_samples(topic, stats, now_ms=now_ms):
            by_family.setdefault(family, []).append(sample)
    return large_reply(await in_slices(render_samples(by_family)), CONTENT_TYPE)


def _queue_samples(topic: Topic, stats: QueueStats, *, now_ms: int) -> Samples:
    labels = (topic.account, topic.region, topic.name)
    for state in STATES:
        yield families.OBJECT_QUEUE_MESSAGES, ((*labels, state), getattr(stats, state))
    sent_at_ms = stats.oldest_sent_at_ms
    age = 0.0 if sent_at_ms is None else max(0, now_ms - sent_at_ms) / 1_000
    yield families.OBJECT_QUEUE_OLDEST_AGE, (labels, age)
    yield families.OBJECT_QUEUE_LOG_SIZE, (labels, stats.log_bytes)
    yield families.OBJECT_QUEUE_WAITS, (labels, stats.waits)
    yield families.OBJECT_QUEUE_SENT, (labels, stats.sent)
    yield families.OBJECT_QUEUE_RECEIVED, (labels, stats.received)
    yield families.OBJECT_QUEUE_DELETED, (labels, stats.acked)
    yield families.OBJECT_QUEUE_DEAD_LETTERED, (labels, stats.dead_lettered)
    yield families.OBJECT_QUEUE_EXPIRED, (labels, stats.expired)
