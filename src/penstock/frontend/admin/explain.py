"""``/api/v1/queues/{name}/explain``: why a receive from the queue gets nothing. ``explanation.py``
puts it into words."""

import msgspec

from penstock.frontend.admin.explanation import Situation, explain
from penstock.frontend.admin.messages import RECEIVE
from penstock.frontend.admin.queues import find
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import READ, known_user, queue_decision
from penstock.model.errors import NotLeader, Overloaded
from penstock.model.identity import Caller
from penstock.model.topic import QueueStats, Topic
from penstock.net.exchange import HttpReply


async def one(context: Context, call: Call) -> HttpReply:
    call.only(("account", "region", "user"))
    topic = find(context, call)
    who = _consumer(context, call, topic)
    redrive = topic.settings.redrive
    limit, throttled_ms = _throttled(context, topic, who)
    situation = Situation(
        denied=_denied(context, call, topic, who),
        throttled_by=limit,
        throttled_ms=throttled_ms,
        attempts_max=None if redrive is None else redrive.attempts_max,
        dead_letter_queue=None if redrive is None else redrive.target_arn.rpartition(":")[2],
    )
    stats: QueueStats | None = None
    try:
        stats = await context.backend.stats(topic, is_detailed=True)
        situation = msgspec.structs.replace(situation, stats=stats)
    except Overloaded as error:  # a node or partition that does not answer is a reason too
        situation = msgspec.structs.replace(situation, unreachable=_unreachable(error))
    found = explain(situation, now_ms=context.clock.wall_ms())
    counts = {} if stats is None else _counts(stats)
    return json_reply(
        200,
        {
            "queue": topic.name,
            "is_delivering": found.is_delivering,
            "summary": found.summary,
            "reasons": found.reasons,
            **counts,
        },
    )


def _counts(stats: QueueStats) -> dict[str, object]:
    return {
        "visible": stats.visible,
        "in_flight": stats.in_flight,
        "delayed": stats.delayed,
        "blocked": None if stats.obstacles is None else stats.obstacles.blocked,
        "waits": stats.waits,
    }


def _consumer(context: Context, call: Call, topic: Topic) -> Caller:
    """Whose policies and limits count: the user that is named, else the caller."""
    if "user" not in call.query:
        return call.caller
    user = known_user(context, call, topic.account, call.text("user"), READ)
    return Caller(topic.account, user.name, is_operator=user.is_operator)


def _denied(context: Context, call: Call, topic: Topic, who: Caller) -> str:
    if who.is_trusted or who.account != topic.account or context.decisions is None:
        return ""  # an operator who looks at the queue of another tenant receives nothing from it
    decision = queue_decision(context, call, who, RECEIVE, topic.region, topic.name)
    if decision.is_allowed:
        return ""
    why = (
        f"the {decision.source}-based policy denies it"
        if decision.is_explicit
        else "no policy allows it"
    )
    return f"{who.user} may not do {RECEIVE} on {topic.arn}: {why}"


def _throttled(context: Context, topic: Topic, who: Caller) -> tuple[str, int]:
    """The limit that holds back the next receive, and for how many milliseconds."""
    if context.throttler is None or context.identities is None:
        return "", 0
    tenant = context.identities.tenant(who.account)
    now_ms = context.clock.mono_ms()
    wait_ms, limit = context.throttler.wait(tenant, who, RECEIVE, topic.arn, now_ms=now_ms)
    return limit, wait_ms


def _unreachable(error: Overloaded) -> str:
    if isinstance(error, NotLeader):
        partition = error.place.rpartition("/")[2]
        return (
            f"partition {partition} has no leader: its messages wait until a node leads it;"
            " see `penstock cluster status`"
        )
    return f"the queue cannot be reached: {error}"
