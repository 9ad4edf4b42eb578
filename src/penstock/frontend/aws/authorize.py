"""The stage of a request that checks whether the caller may perform the action.

Most actions need one permission on one queue or SNS topic; ``_RULES`` has the exceptions. For
example, an action that makes messages go from one queue to another needs a permission on both
queues. A trusted caller (authentication is off) may do everything. If the policy of another
account's queue gives the caller no right at all, the error is the same as for a queue that does not
exist."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock.access.evaluation import Decision, Kind
from penstock.frontend.aws.context import Call, GrantKey
from penstock.frontend.aws.sns.actions import ACTIONS as SNS_ACTIONS
from penstock.frontend.aws.sns.actions import LINKS
from penstock.frontend.aws.sns.actions.direct import is_direct
from penstock.frontend.aws.sns.rules.topic_attributes import OWNER_ACTIONS
from penstock.frontend.aws.sqs.actions import GET_CALLER_IDENTITY
from penstock.frontend.aws.sqs.actions.move_tasks import decode_handle, not_found
from penstock.frontend.aws.sqs.rules import queue_policies
from penstock.model.errors import TopicNotFound
from penstock.model.identity import Circumstances
from penstock.model.names import (
    is_account,
    is_queue_name,
    is_share_name,
    queue_arn,
    sns_arn,
    split_share,
)
from penstock.model.topic import Topic
from penstock.wire.aws import queue_urls
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.sns import arns
from penstock.wire.aws.sns import shapes as sns
from penstock.wire.aws.sns.book_shapes import OPERATIONS as BOOKS
from penstock.wire.aws.sns.faults import fault as sns_fault
from penstock.wire.aws.sns.faults import topic_not_found

SNS: Final = "sns:"
SEND: Final = "sqs:SendMessage"
RECEIVE: Final = "sqs:ReceiveMessage"
# Permissions needed on the source queue of a move task.
_MOVING: Final = (RECEIVE, "sqs:DeleteMessage", "sqs:GetQueueAttributes")


class Target(msgspec.Struct, frozen=True, gc=False):
    """A queue or SNS topic named in a request, which may not exist."""

    account: str
    arn: str
    topic: Topic | None
    absent: Exception  # the error to raise if it does not exist
    is_sns: bool = False

    @property
    def policy(self) -> str | None:
        if self.topic is None:
            return None
        if not self.is_sns:
            return self.topic.settings.policy
        assert self.topic.sns is not None
        return self.topic.sns.attributes.get("Policy") or None


Needs = Iterator[tuple[str, Target]]  # the needed permissions, each with its queue


def authorize(call: Call) -> None:
    if call.caller.is_trusted:
        return
    action = call.action
    if action is GET_CALLER_IDENTITY:
        return
    if call.scope is None and action.name in LINKS:
        return  # an unsigned link with a token or an id, which the action checks
    call.permission = action.permission
    rule = _RULES.get(action.permission)
    if rule is None and action.permission.startswith(SNS):
        rule = _on_topic
    if rule is None:
        _on_queue(call, call.request)
    else:
        for permission, target in rule(call, call.request):
            _require(call, permission, target)


def _on_queue(call: Call, request: Any) -> None:
    url = request.queue_url
    if not url:
        raise missing("QueueUrl")
    caller = call.caller
    account, region = caller.account, call.region
    key = (account, caller.user, call.permission, url, region)
    grant, find = call.context.grants.find(key), call.context.everything.find
    # Grants are only for queues of the caller's own account.
    if grant is None or find(account, region, grant.topic.name) is not grant.topic:
        _check_queue(call, key)
        return
    call.arn = grant.arn
    call.topic = grant.topic
    call.grant = grant


def _check_queue(call: Call, key: GrantKey) -> None:
    address = queue_urls.parse(key[3])
    caller, permission = call.caller, call.permission
    account = address.account or caller.account
    topic = call.context.catalog.find(account, call.region, address.name)
    arn = queue_arn(account, call.region, address.name) if topic is None else topic.arn
    call.arn = arn
    _require(call, permission, Target(account, arn, topic, TopicNotFound()))
    # No grant for a share: a grant ends when its topic changes, not when the share's source does.
    if (
        account == caller.account
        and topic is not None
        and topic.source_id is None
        and call.context.decisions.is_cached(
            caller, permission, arn=arn, owner=account, policy=topic.settings.policy
        )
    ):
        call.grant = call.context.grants.add(key, topic)


# ── Rules of actions that need more than one permission on one queue ─────────────────────────


def _set_attributes(call: Call, request: aws.SetQueueAttributesRequest) -> Needs:
    _on_queue(call, request)
    yield from _dead_letters(call, request.attributes)


def _create_queue(call: Call, request: aws.CreateQueueRequest) -> Needs:
    name = request.queue_name
    if name is None or not (is_queue_name(name) or is_share_name(name)):
        return  # the action rejects the name
    target = _named(call, call.account, name)
    yield call.permission, target
    if request.tags:
        yield "sqs:TagQueue", target
    share = split_share(name)
    if share is not None:
        # A share may be created by those who may read its source.
        source = call.context.everything.find(call.account, call.region, share[0])
        arn = queue_arn(call.account, call.region, share[0])
        yield RECEIVE, Target(call.account, arn, source, TopicNotFound())
    yield from _dead_letters(call, request.attributes)


def _get_queue_url(call: Call, request: aws.GetQueueUrlRequest) -> Needs:
    name = request.queue_name
    if not name:
        raise missing("QueueName")
    account = request.queue_owner_aws_account_id or call.account
    if not (is_account(account) and (is_queue_name(name) or is_share_name(name))):
        raise TopicNotFound(name)
    yield call.permission, _named(call, account, name)


def _list_queues(call: Call, _request: object) -> Needs:
    target = _named(call, call.account, "")
    call.arn = ""  # all queues of the account
    yield call.permission, target


def _start_move(call: Call, request: aws.StartMessageMoveTaskRequest) -> Needs:
    source = _move_source(call, request)
    for permission in (call.permission, *_MOVING):
        yield permission, source
    if request.destination_arn:
        yield SEND, _by_arn(call, request.destination_arn, not_found("DestinationArn"))
    elif source.topic is not None:
        origins = queue_policies.sources_of(call.context.catalog, source.topic)
        for origin in origins:
            yield SEND, Target(origin.account, origin.arn, origin, TopicNotFound())
        call.origin_arns = tuple(origin.arn for origin in origins)


def _move_task(call: Call, request: Any) -> Needs:
    yield call.permission, _move_source(call, request)


def _move_source(call: Call, request: Any) -> Target:
    if hasattr(request, "task_handle"):
        if not request.task_handle:
            raise missing("TaskHandle")
        _, arn = decode_handle(request.task_handle)
    else:
        arn = request.source_arn
        if not arn:
            raise missing("SourceArn")
    source = _by_arn(call, arn, not_found("SourceArn"))
    call.arn = source.arn
    return source


def _dead_letters(call: Call, attributes: Mapping[str, str] | None) -> Needs:
    try:
        redrive = queue_policies.parse_redrive((attributes or {}).get("RedrivePolicy") or "")
    except Fault:
        return  # the action rejects the policy
    if redrive is not None:
        shown = queue_policies.redrive_text(redrive)
        absent = invalid_value(shown, "RedrivePolicy", "Dead letter target does not exist.")
        yield SEND, _by_arn(call, redrive.target_arn, absent)


# ── Rules of SNS ─────────────────────────────────────────────────────────────────────────────


def _on_book(call: Call, request: Any) -> Needs:
    given = getattr(request, "platform_application_arn", None)
    yield _on_own(call, given or getattr(request, "endpoint_arn", None))


def _publish(call: Call, request: Any) -> Needs:
    if isinstance(request, sns.PublishRequest) and is_direct(request):
        yield _on_own(call, request.target_arn)
    else:
        yield from _on_topic(call, request)


def _on_own(call: Call, given: str | None) -> tuple[str, Target]:
    """Require the permission on a mobile app or a device of the caller's account, or on everything
    of SNS for a request without a valid ARN. The actions reject ARNs of other accounts."""
    try:
        # One spelling: a Deny must not depend on how the request writes the ARN.
        call.arn = str(arns.parse_topic(given, caller=call.account, region=call.region))
    except Fault:
        call.arn = sns_arn(call.account, call.region, "*")
    return call.permission, Target(call.account, call.arn, None, topic_not_found(), is_sns=True)


def _on_topic(call: Call, request: Any) -> Needs:
    arn = getattr(request, "topic_arn", None) or getattr(request, "target_arn", None)
    arn = arn or getattr(request, "resource_arn", None)
    subscription = getattr(request, "subscription_arn", None)
    if subscription is not None:
        address = arns.parse_subscription(subscription, caller=call.account).topic
    elif call.permission.endswith(("TagResource", "TagsForResource")):
        address = arns.parse_tagged(arn, caller=call.account, region=call.region)
    else:
        address = arns.parse_topic(arn, caller=call.account, region=call.region)
    yield call.permission, _sns_target(call, address.account, address.name)


def _on_link(call: Call, request: Any) -> Needs:
    """Require the permission in the policies of the caller, and in the topic's policy if the topic
    belongs to the caller's account. For a topic of another account, the token or the id of the
    subscription is the proof, as it is in an unsigned link."""
    if isinstance(request, sns.ConfirmSubscriptionRequest):
        address = arns.parse_confirmed_topic(request.topic_arn, caller=call.account)
    else:
        address = arns.parse_subscription(request.subscription_arn, caller=call.account).topic
    call.arn, topic = str(address), None
    if address.account == call.account:
        topic = call.context.everything.find_sns(address.account, address.region, address.name)
    target = Target(call.account, call.arn, topic, topic_not_found(), is_sns=True)
    yield call.permission, target


def _create_topic(call: Call, request: sns.CreateTopicRequest) -> Needs:
    if request.name is None or not arns.is_topic_name(request.name):
        return  # the action rejects the name
    target = _sns_target(call, call.account, request.name)
    yield call.permission, target
    if request.tags:
        yield "sns:TagResource", target


def _list_topics(call: Call, _request: object) -> Needs:
    target = _sns_target(call, call.account, "")
    call.arn = ""  # all topics of the account
    yield call.permission, target


def _sns_target(call: Call, account: str, name: str) -> Target:
    topic = call.context.everything.find_sns(account, call.region, name)
    call.arn = sns_arn(account, call.region, name)
    return Target(account, call.arn, topic, topic_not_found(), is_sns=True)


_RULES: Final[Mapping[str, Callable[[Call, Any], Needs]]] = {
    "sqs:CancelMessageMoveTask": _move_task,
    "sqs:CreateQueue": _create_queue,
    "sqs:GetQueueUrl": _get_queue_url,
    "sqs:ListMessageMoveTasks": _move_task,
    "sqs:ListQueues": _list_queues,
    "sqs:SetQueueAttributes": _set_attributes,
    "sqs:StartMessageMoveTask": _start_move,
    "sns:ConfirmSubscription": _on_link,
    "sns:CreateTopic": _create_topic,
    "sns:ListSubscriptions": _list_topics,
    "sns:ListTopics": _list_topics,
    "sns:Publish": _publish,
    "sns:Unsubscribe": _on_link,
    **{f"sns:{name}": _on_book for name in BOOKS},
}


def _named(call: Call, account: str, name: str) -> Target:
    topic = call.context.catalog.find(account, call.region, name)
    call.arn = queue_arn(account, call.region, name)
    return Target(account, call.arn, topic, TopicNotFound(name))


def _by_arn(call: Call, arn: str, absent: Exception) -> Target:
    address = queue_urls.parse_arn(arn)
    if address is None or address.account is None:
        raise absent
    return Target(address.account, arn, call.context.catalog.find_arn(arn), absent)


def _require(call: Call, permission: str, target: Target) -> None:
    caller, decisions, arn, http = call.caller, call.context.decisions, target.arn, call.http

    def found() -> Circumstances:
        return Circumstances(http.peer, http.is_tls, call.context.clock.wall_ms())

    def decide(owner: str, topic: Topic | None) -> Decision:
        if target.is_sns:
            policy = None if topic is None else target.policy
            return decisions.decide(
                caller, permission, arn=arn, owner=owner, policy=policy, circumstances=found
            )
        everything = call.context.everything
        return decisions.decide_on_queue(
            everything, caller, permission, arn=arn, owner=owner, topic=topic, circumstances=found
        )

    is_own = target.account == caller.account
    # The policy of another account's queue comes after the caller's own: the queue may not exist.
    decision = decide(caller.account, target.topic if is_own else None)
    if not decision.is_allowed:
        raise _denied(call, permission, arn, decision)
    policy = target.policy
    is_shareable = policy is not None and permission not in _OWNER_ONLY
    if is_own or (is_shareable and decide(target.account, target.topic).is_allowed):
        return
    if not decisions.grants_anything(
        caller, arn=arn, owner=target.account, policy=policy, circumstances=found
    ):
        raise target.absent
    raise _denied(call, permission, arn, Decision(False, source=Kind.RESOURCE))


def _denied(call: Call, permission: str, arn: str, decision: Decision) -> Fault:
    is_sns = permission.startswith(SNS)
    name = permission.replace(SNS, "SNS:") if is_sns else permission.lower()
    if decision.is_explicit:
        article = "an" if decision.source == Kind.IDENTITY else "a"
        reason = f"with an explicit deny in {article} {decision.source}-based policy"
    else:
        reason = f"because no {decision.source}-based policy allows the {name} action"
    text = f"User: {call.caller.arn} is not authorized to perform: {name} on resource: {arn}"
    text = f"{text} {reason}"
    return sns_fault("AuthorizationError", text) if is_sns else fault("AccessDenied", text)


# Actions that a policy cannot grant to another account.
_OWNER_ONLY: Final = frozenset(f"sqs:{name}" for name in queue_policies.OWNER_ONLY) | frozenset(
    action.permission
    for action in SNS_ACTIONS.values()
    if action.name not in (*OWNER_ACTIONS, "PublishBatch")
)
