"""``/api/v1/queues/{name}/explain``: why a receive from the queue gets no messages.
``explanation.py`` has the texts."""

import msgspec

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import READ, known_user, queue_decision
from penstock.frontend.admin.topics.explanation import Situation, explain
from penstock.frontend.admin.topics.messages import RECEIVE
from penstock.frontend.admin.topics.queues import find
from penstock.model.calls import Stats
from penstock.model.errors import NotLeader, Overloaded
from penstock.model.identity import Caller
from penstock.model.topic import QueueStats, Topic
from penstock.net.http.exchange import HttpReply


async def one(context: Context, call: Call) -> HttpReply:
    topic = find(context, call)
    consumer = _consumer(context, call, topic)
    redrive = topic.settings.redrive
    limit, throttled_ms = _throttled(context, topic, consumer)
    situation = Situation(
        denied=_denied(context, call, topic, consumer),
        throttled_by=limit,
        throttled_ms=throttled_ms,
        attempts_max=None if redrive is None else redrive.attempts_max,
        dead_letter_queue=None if redrive is None else redrive.target_arn.rpartition(":")[2],
    )
    stats: QueueStats | None = None
    try:
        stats = await context.broker.call(Stats(topic, is_detailed=True))
        situation = msgspec.structs.replace(situation, stats=stats)
    except Overloaded as error:  # an unreachable node or partition is a reason as well
        situation = msgspec.structs.replace(situation, unreachable=_unreachable(error))
    found = explain(situation, now_ms=context.clock.wall_ms())
    shown = {"queue": topic.name, **msgspec.structs.asdict(found)}
    if stats is not None:
        shown |= {
            "visible": stats.visible,
            "in_flight": stats.in_flight,
            "delayed": stats.delayed,
            "blocked": None if stats.obstacles is None else stats.obstacles.blocked,
            "waits": stats.waits,
        }
    return json_reply(200, shown)


def _consumer(context: Context, call: Call, topic: Topic) -> Caller:
    """Return the user whose policies and limits apply: the named user, else the caller."""
    if "user" not in call.query:
        return call.caller
    user = known_user(context, call, topic.account, call.text("user"), READ)
    return Caller(topic.account, user.name, is_operator=user.is_operator)


def _denied(context: Context, call: Call, topic: Topic, consumer: Caller) -> str:
    if consumer.is_trusted or consumer.account != topic.account or context.decisions is None:
        return ""  # an operator who inspects the queue of another tenant does not receive from it
    decision = queue_decision(context, call, consumer, RECEIVE, topic.region, topic.name)
    if decision.is_allowed:
        return ""
    reason = "no policy allows it"
    if decision.is_explicit:
        reason = f"the {decision.source}-based policy denies it"
    return f"{consumer.user} may not do {RECEIVE} on {topic.arn}: {reason}"


def _throttled(context: Context, topic: Topic, consumer: Caller) -> tuple[str, int]:
    """Return the limit that rejects the next receive, and for how many milliseconds."""
    if context.throttler is None or context.identities is None:
        return "", 0
    tenant = context.identities.tenant(consumer.account)
    now_ms = context.clock.mono_ms()
    wait_ms, limit = context.throttler.wait(tenant, consumer, RECEIVE, topic.arn, now_ms=now_ms)
    return limit, wait_ms


def _unreachable(error: Overloaded) -> str:
    if isinstance(error, NotLeader):
        partition = error.place.rpartition("/")[2]
        return (
            f"partition {partition} has no leader: its messages wait until a node leads it;"
            " see `penstock cluster status`"
        )
    return f"the queue cannot be reached: {error}"
