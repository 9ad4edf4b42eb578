"""Third stage: may the caller do that with this queue?

Each action has a rule here that names what must be allowed: most need one permission on one queue,
those that make messages go from one queue to another need one on each of them. Entries of a batch
are what their single form is. A caller who is believed (authentication is off) may do everything.

Another account's queue that gives the caller no right at all is answered exactly as one that is
not there: nobody learns of a queue by being refused. That is why the caller's own policies are
asked first, without the queue's: what they refuse, they refuse whether or not there is a queue."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.passes import Place
from penstock.frontend.queue_access import decide_on_queue
from penstock.frontend.sqs.actions import ACTIONS
from penstock.frontend.sqs.move_tasks import no_such, open_handle
from penstock.frontend.sqs.redrive import sources_of
from penstock.frontend.sts import get_caller_identity
from penstock.model.errors import TopicNotFound
from penstock.model.identity import Circumstances
from penstock.model.names import is_account, is_queue_name, is_share_name, queue_arn, split_share
from penstock.model.topic import Topic
from penstock.wire.aws import policy, queue_urls
from penstock.wire.aws.access import Decision, Kind
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.shapes import (
    CancelMessageMoveTaskRequest,
    CreateQueueRequest,
    GetQueueUrlRequest,
    ListMessageMoveTasksRequest,
    QueueRequest,
    SetQueueAttributesRequest,
    StartMessageMoveTaskRequest,
)

Rule = Callable[[Context, Call, str, Any], None]  # with the permission's name and what is asked

SEND: Final = "sqs:SendMessage"
RECEIVE: Final = "sqs:ReceiveMessage"
# What moving dead letters does with them where they are.
_MOVING: Final = (RECEIVE, "sqs:DeleteMessage", "sqs:GetQueueAttributes")


class Target(msgspec.Struct, frozen=True, gc=False):
    """A queue as it was named, whether or not there is one."""

    account: str
    arn: str
    topic: Topic | None
    absent: Exception  # how it is answered when there is none


def authorize(context: Context, call: Call) -> None:
    """Raises AccessDenied, or what is answered when there is no such queue."""
    if call.caller.is_trusted:
        return
    action = call.action
    assert action is not None, "decode found an action or raised"
    if action is get_caller_identity.ACTION:
        return
    permission, rule = _RULES[action.name]
    call.permission = permission
    rule(context, call, permission, call.asked)


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


def _on_queue(context: Context, call: Call, permission: str, asked: QueueRequest) -> None:
    """The hot one: what was allowed a moment ago is allowed (``passes.py``)."""
    url = asked.queue_url
    if not url:
        raise missing("QueueUrl")
    caller = call.caller
    account, region = caller.account, call.region
    place = (account, caller.user, permission, url, region)
    kept = context.passes.find(place)
    # In its own account, as all are that there is a pass for; and a queue, since it was one.
    if kept is None or context.everything.find(account, region, kept.topic.name) is not kept.topic:
        _weigh(context, call, permission, place)
        return
    call.arn = kept.arn
    call.topic = kept.topic
    call.kept = kept


def _weigh(context: Context, call: Call, permission: str, place: Place) -> None:
    address = queue_urls.parse(place[3])
    caller = call.caller
    account = address.account or caller.account
    topic = context.catalog.find(account, call.region, address.name)
    arn = queue_arn(account, call.region, address.name) if topic is None else topic.arn
    call.arn = arn
    if account != caller.account:
        _require(context, call, permission, Target(account, arn, topic, TopicNotFound()))
        return
    decision = _decide(context, call, permission, Target(account, arn, topic, TopicNotFound()))
    if not decision.is_allowed:
        raise _denied(call, permission, arn, decision)
    # A share has no pass: a pass is void when its topic changes, not when the share's source does.
    if (
        topic is not None
        and topic.source_id is None
        and context.decisions.is_kept(
            caller, permission, arn=arn, owner=account, policy=topic.settings.policy
        )
    ):
        call.kept = context.passes.keep(place, topic)


def _set_queue_attributes(
    context: Context, call: Call, permission: str, asked: SetQueueAttributesRequest
) -> None:
    _on_queue(context, call, permission, asked)
    _dead_letters(context, call, asked.attributes)


def _create_queue(context: Context, call: Call, permission: str, asked: CreateQueueRequest) -> None:
    name = asked.queue_name
    if name is None or not (is_queue_name(name) or is_share_name(name)):
        return  # no queue can have it, and the action says so
    target = _named(context, call, call.account, name)
    call.arn = target.arn
    _require(context, call, permission, target)
    if asked.tags:
        _require(context, call, "sqs:TagQueue", target)
    share = split_share(name)
    if share is not None:
        # A new way to read a topic is for those who may read it the old way.
        source = context.everything.find(call.account, call.region, share[0])
        arn = queue_arn(call.account, call.region, share[0])
        _require(context, call, RECEIVE, Target(call.account, arn, source, TopicNotFound()))
    _dead_letters(context, call, asked.attributes)


def _get_queue_url(
    context: Context, call: Call, permission: str, asked: GetQueueUrlRequest
) -> None:
    name = asked.queue_name
    if not name:
        raise missing("QueueName")
    account = asked.queue_owner_aws_account_id or call.account
    if not (is_account(account) and (is_queue_name(name) or is_share_name(name))):
        raise TopicNotFound(name)
    target = _named(context, call, account, name)
    call.arn = target.arn
    _require(context, call, permission, target)


def _list_queues(context: Context, call: Call, permission: str, _asked: object) -> None:
    """About all queues of the caller's own account, so about none by name."""
    _require(context, call, permission, _named(context, call, call.account, ""))


def _start_move(
    context: Context, call: Call, permission: str, asked: StartMessageMoveTaskRequest
) -> None:
    if not asked.source_arn:
        raise missing("SourceArn")
    source = _by_arn(context, asked.source_arn, no_such("SourceArn"))
    call.arn = source.arn
    for needed in (permission, *_MOVING):
        _require(context, call, needed, source)
    if asked.destination_arn:
        destination = _by_arn(context, asked.destination_arn, no_such("DestinationArn"))
        _require(context, call, SEND, destination)
    elif source.topic is not None:
        origins = sources_of(context.catalog, source.topic)
        for origin in origins:
            _require(
                context, call, SEND, Target(origin.account, origin.arn, origin, TopicNotFound())
            )
        call.origin_arns = tuple(origin.arn for origin in origins)


def _cancel_move(
    context: Context, call: Call, permission: str, asked: CancelMessageMoveTaskRequest
) -> None:
    if not asked.task_handle:
        raise missing("TaskHandle")
    _, source_arn = open_handle(asked.task_handle)
    source = _by_arn(context, source_arn, no_such("SourceArn"))
    call.arn = source.arn
    _require(context, call, permission, source)


def _list_moves(
    context: Context, call: Call, permission: str, asked: ListMessageMoveTasksRequest
) -> None:
    if not asked.source_arn:
        raise missing("SourceArn")
    source = _by_arn(context, asked.source_arn, no_such("SourceArn"))
    call.arn = source.arn
    _require(context, call, permission, source)


def _dead_letters(context: Context, call: Call, attributes: Mapping[str, str] | None) -> None:
    """Whoever sends dead letters to a queue sends to it."""
    text = (attributes or {}).get("RedrivePolicy")
    if not text:
        return
    try:
        redrive = policy.parse_redrive(text)
    except Fault:
        return  # the action refuses it, in the order in which attributes are looked at
    if redrive is None:
        return
    shown = policy.redrive_text(redrive)
    absent = invalid_value(shown, "RedrivePolicy", "Dead letter target does not exist.")
    _require(context, call, SEND, _by_arn(context, redrive.target_arn, absent))


# ── Targets ──────────────────────────────────────────────────────────────────────────────────


def _named(context: Context, call: Call, account: str, name: str) -> Target:
    topic = context.catalog.find(account, call.region, name)
    arn = queue_arn(account, call.region, name)
    return Target(account, arn, topic, TopicNotFound(name))


def _by_arn(context: Context, arn: str, absent: Exception) -> Target:
    address = queue_urls.parse_arn(arn)
    if address is None or address.account is None:
        raise absent
    return Target(address.account, arn, context.catalog.find_arn(arn), absent)


def _require(context: Context, call: Call, permission: str, target: Target) -> None:
    caller, decisions = call.caller, context.decisions
    account, arn, topic = target.account, target.arn, target.topic
    text = None if topic is None else topic.settings.policy

    def circumstances() -> Circumstances:
        return _circumstances(context, call)

    if account == caller.account:
        decision = _decide(context, call, permission, target)
        if not decision.is_allowed:
            raise _denied(call, permission, arn, decision)
        return
    # Its own policies alone, as if the queue were its own: the same whether or not there is one.
    decision = decisions.decide(
        caller, permission, arn=arn, owner=caller.account, policy=None, circumstances=circumstances
    )
    if not decision.is_allowed:
        raise _denied(call, permission, arn, decision)
    if text is not None and permission not in _OWNER_ONLY:
        decision = _decide(context, call, permission, target)
        if decision.is_allowed:
            return
    if not decisions.is_known_to(
        caller, arn=arn, owner=account, policy=text, circumstances=circumstances
    ):
        raise target.absent
    raise _denied(call, permission, arn, Decision(False, source=Kind.RESOURCE))


def _decide(context: Context, call: Call, permission: str, target: Target) -> Decision:
    """Decide with the policies of the queue, and of the source topic if the queue is a share."""
    return decide_on_queue(
        context.decisions,
        context.everything,
        call.caller,
        permission,
        arn=target.arn,
        owner=target.account,
        topic=target.topic,
        circumstances=lambda: _circumstances(context, call),
    )


def _circumstances(context: Context, call: Call) -> Circumstances:
    request = call.request
    return Circumstances(request.peer, request.is_tls, context.clock.wall_ms())


def _denied(call: Call, permission: str, arn: str, decision: Decision) -> Fault:
    name = permission.lower()
    if decision.is_explicit:
        reason = f"with an explicit deny in {_ARTICLES[decision.source]}-based policy"
    else:
        reason = f"because no {decision.source}-based policy allows the {name} action"
    return fault(
        "AccessDenied",
        f"User: {call.caller.arn} is not authorized to perform: {name} on resource: {arn} {reason}",
    )


_ARTICLES: Final = {Kind.IDENTITY.value: "an identity", Kind.RESOURCE.value: "a resource"}
_OWNER_ONLY: Final = frozenset(f"sqs:{name}" for name in policy.OWNER_ONLY)
_SPECIAL: Final[Mapping[str, Rule]] = {
    "CancelMessageMoveTask": _cancel_move,
    "CreateQueue": _create_queue,
    "GetQueueUrl": _get_queue_url,
    "ListMessageMoveTasks": _list_moves,
    "ListQueues": _list_queues,
    "SetQueueAttributes": _set_queue_attributes,
    "StartMessageMoveTask": _start_move,
}
_RULES: Final[Mapping[str, tuple[str, Rule]]] = {
    name: (f"sqs:{name.removesuffix('Batch')}", _SPECIAL.get(name, _on_queue)) for name in ACTIONS
}
