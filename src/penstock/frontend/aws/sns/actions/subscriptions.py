"""Actions that subscribe endpoints to SNS topics, confirm, list, change and delete subscriptions.

A queue of the caller's account is confirmed at once. Any other endpoint gets a message with a token
and must send it back within 48 hours. A subscription gets the messages that are published after its
confirmation: its entry contains the ends of the topic's logs at that time. An HTTP endpoint whose
subscription is deleted gets another token, which restores the subscription."""

import base64
import binascii
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.flow.verdicts import Failure
from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.actions.topics import topic_of
from penstock.frontend.aws.sns.rules import replay_policy, subscription_attributes
from penstock.frontend.aws.sns.rules.endpoints import (
    HIDDEN,
    HTTP,
    SQS,
    Endpoint,
    check_endpoint,
)
from penstock.frontend.aws.sns.rules.replay_policy import REPLAY, Times
from penstock.model.calls import Ends, FindTime, LearnSubscription
from penstock.model.errors import InvalidRequest, NotFound, PenstockError, QuotaExceeded
from penstock.model.ports import KeyRing
from penstock.model.subscription import RANDOM_BYTES, Subscription, SubscriptionState, new_id
from penstock.model.topic import Topic
from penstock.wire.aws.queue_urls import parse_arn
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.aws.sns.faults import (
    ON_CREATE,
    ON_SET,
    fault,
    invalid,
    no_value,
    null_value,
    subscription_not_found,
    topic_not_found,
)
from penstock.wire.aws.sns.tokens import read_token

PAGE: Final = 100  # subscriptions of one reply
PENDING_ARN: Final = "pending confirmation"
_PENDING_LISTED: Final = "PendingConfirmation"

Offsets = tuple[int, ...]  # by partition


async def subscribe(call: Call, request: shapes.SubscribeRequest) -> shapes.SubscribeReply:
    context, topic = call.context, topic_of(call, request.topic_arn)
    protocol = request.protocol
    if not request.endpoint:
        raise no_value("Endpoint")
    if not protocol:
        raise null_value("protocol")
    endpoint = check_endpoint(
        topic,
        protocol,
        request.endpoint,
        relayed=context.relayed,
        has_application=context.has_application,
    )
    if protocol in HTTP and not context.is_usable(request.endpoint, call.account):
        raise invalid("Endpoint", Failure.UNUSABLE)
    given, now_ms = request.attributes or {}, context.clock.wall_ms()
    attributes = subscription_attributes.read_new(
        topic, protocol, endpoint.text, given, now_ms=now_ms
    )
    one = context.subscriptions.find_endpoint(topic.topic_id, protocol, endpoint.text)
    if one is None:
        if not topic.is_fifo:
            # Now, because it takes longer than a publisher waits for the copies of its message.
            with suppress(PenstockError):
                await context.prepare_key()
        new = await _new_subscription(call, topic, protocol, endpoint, attributes)
        try:
            one = await context.subscriptions.create(new)
        except QuotaExceeded as error:
            raise fault("SubscriptionLimitExceeded", str(error)) from None
    if subscription_attributes.first_difference(attributes, one) is not None:
        text = "Subscription already exists with different attributes"
        raise invalid("Attributes", text)
    one = await _with_password(call, one, endpoint.password)
    await _tell_leaders(call, topic, one)
    is_pending = one.state is SubscriptionState.PENDING
    if is_pending:
        context.confirm(one)
    is_hidden = is_pending and not request.return_subscription_arn
    return shapes.SubscribeReply(subscription_arn=PENDING_ARN if is_hidden else one.arn)


async def _new_subscription(
    call: Call, topic: Topic, protocol: str, endpoint: Endpoint, attributes: dict[str, str]
) -> Subscription:
    context, now_ms = call.context, call.context.clock.wall_ms()
    random = context.entropy(RANDOM_BYTES)
    one = Subscription(
        id=new_id(topic.topic_id, protocol, endpoint.text, random=random),
        topic_id=topic.topic_id,
        source_arn=topic.sns_arn or "",
        account=call.account,
        region=topic.region,
        protocol=protocol,
        endpoint=endpoint.text,
        created_at_ms=now_ms,
        principal=_principal(call),
        attributes=attributes,
        base_url=_base_url(call),
    )
    if endpoint.password:
        one = _sealed(call, one, endpoint.password)
    if protocol == SQS:
        queue = parse_arn(endpoint.text)
        assert queue is not None, "check_endpoint() has accepted the ARN"
        must_confirm = not context.config.is_dev and queue.account != call.account
    else:
        must_confirm = context.relayed.get(protocol, True)
    return one if must_confirm else await _confirmed(call, topic, one, is_authenticated=True)


def _ring(call: Call) -> KeyRing:
    ring = call.context.ring
    if ring is None:
        raise invalid("Endpoint", "this server cannot encrypt a password")
    return ring


def _sealed(call: Call, one: Subscription, password: str) -> Subscription:
    wrapped = _ring(call).wrap(password.encode(), context=one.secrets_context)
    return msgspec.structs.replace(one, secrets=wrapped)


async def _with_password(call: Call, one: Subscription, password: str) -> Subscription:
    """Store the password of a Subscribe request, if it differs from the one that is stored. Another
    tenant who may subscribe to the topic cannot change it."""
    if password in ("", HIDDEN) or one.account != call.account:
        return one
    secrets, context = one.secrets, one.secrets_context
    if secrets and _ring(call).unwrap(secrets, context=context) == password.encode():
        return one
    return await call.context.subscriptions.change(
        one.id, lambda current: _sealed(call, current, password)
    )


async def _ends(call: Call, topic: Topic) -> Offsets:
    offsets = []
    for partition in range(topic.partition_count):
        ends = await call.context.broker.call(Ends(topic, partition))
        offsets.append(ends.high_watermark)
    return tuple(offsets)


async def _confirmed(
    call: Call, topic: Topic, one: Subscription, *, is_authenticated: bool
) -> Subscription:
    """Return a subscription that begins with the next message, after the replay that its attributes
    ask for."""
    now_ms, ends = call.context.clock.wall_ms(), await _ends(call, topic)
    ready = msgspec.structs.replace(
        one,
        state=SubscriptionState.CONFIRMED,
        confirmed_at_ms=now_ms,
        deleted_at_ms=0,
        was_authenticated=is_authenticated,
        start_offsets=ends,
    )
    policy = one.attributes.get(REPLAY)
    if not policy or one.state is SubscriptionState.DELETED:
        return ready
    times = replay_policy.read_policy(policy, prefix=ON_CREATE, now_ms=now_ms)
    starts, until = await _range(call, topic, times, ends)
    return replay_policy.with_replay(ready, starts=starts, until=until, now_ms=now_ms)


async def _tell_leaders(call: Call, topic: Topic, one: Subscription) -> None:
    """Let the leaders of the topic copy all messages that are published after the reply."""
    if one.protocol == SQS and one.state is SubscriptionState.CONFIRMED:
        await call.context.broker.call(LearnSubscription(topic, subscription_id=one.id))


async def _range(call: Call, topic: Topic, times: Times, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return the offsets of the first message of a replay, and those after its last message."""

    async def at(partition: int, at_ms: int) -> int:
        offset, _ = await call.context.broker.call(FindTime(topic, partition, at_ms))
        return ends[partition] if offset < 0 else min(offset, ends[partition])

    partitions = range(len(ends))
    starts = tuple([await at(each, times.start_ms) for each in partitions])
    if times.end_ms is None:
        return starts, ends
    return starts, tuple([await at(each, times.end_ms + 1) for each in partitions])


def _principal(call: Call) -> str:
    caller = call.caller
    return f"arn:aws:iam::{call.account}:root" if caller.is_trusted else caller.arn


def _base_url(call: Call) -> str:
    """Return the beginning of links to this server, as the client that subscribes reaches it."""
    http, external = call.http, call.context.config.external_url
    scheme = "https" if http.is_tls else "http"
    return (external or f"{scheme}://{http.headers.get('host', 'localhost')}").rstrip("/")


async def confirm_subscription(
    call: Call, request: shapes.ConfirmSubscriptionRequest
) -> shapes.ConfirmSubscriptionReply:
    context = call.context
    topic_arn = arns.parse_confirmed_topic(request.topic_arn, caller=call.account)
    try:
        token = read_token(context.token_key, request.token or "", now_ms=context.clock.wall_ms())
    except InvalidRequest:
        raise invalid("Token") from None
    if topic_arn.region != token.region:
        raise invalid("Topic")
    try:  # only ``change`` finds a subscription that was deleted
        one = await context.subscriptions.change(token.subscription_id, lambda current: current)
    except NotFound:
        raise invalid("Token") from None
    topic = context.everything.find_id(one.topic_id)
    if topic is None:
        raise invalid("Token")
    if one.state is not SubscriptionState.CONFIRMED:
        needs_owner = (request.authenticate_on_unsubscribe or "").lower() == "true"
        ready = await _confirmed(call, topic, one, is_authenticated=call.scope is not None)

        def confirm(current: Subscription) -> Subscription:
            if current.state is SubscriptionState.CONFIRMED:
                return current
            return msgspec.structs.replace(
                current,
                state=ready.state,
                confirmed_at_ms=ready.confirmed_at_ms,
                deleted_at_ms=0,
                was_authenticated=ready.was_authenticated,
                needs_owner=needs_owner or current.needs_owner,
                start_offsets=ready.start_offsets,
                replays=ready.replays,
            )

        one = await context.subscriptions.change(one.id, confirm)
    await _tell_leaders(call, topic, one)
    return shapes.ConfirmSubscriptionReply(subscription_arn=one.arn)


async def unsubscribe(call: Call, request: shapes.UnsubscribeRequest) -> None:
    context, is_signed = call.context, call.scope is not None
    address = arns.parse_subscription(request.subscription_arn, caller=call.account)
    one = await context.subscriptions.learn(address.id)
    if one is None or one.arn != str(address) or (is_signed and one.region != call.region):
        return
    owners = (one.account, address.topic.account)
    if one.needs_owner and not (is_signed and call.account in owners):
        raise fault("AuthorizationError", "Only the owner of this subscription may unsubscribe it.")
    if one.protocol not in HTTP or one.state is not SubscriptionState.CONFIRMED:
        await context.subscriptions.delete(one.id)
        return
    now_ms = context.clock.wall_ms()

    def delete(current: Subscription) -> Subscription:
        if current.state is SubscriptionState.DELETED:
            return current
        state = SubscriptionState.DELETED
        return msgspec.structs.replace(current, state=state, deleted_at_ms=now_ms)

    try:
        context.unsubscribed(await context.subscriptions.change(one.id, delete))
    except NotFound:
        return  # deleted by another request


# ── Lists ────────────────────────────────────────────────────────────────────────────────────


async def list_subscriptions(
    call: Call, request: shapes.ListSubscriptionsRequest
) -> shapes.ListSubscriptionsReply:
    after = _read_token(request.next_token)
    found = call.context.subscriptions.page(call.account, call.region, after=after, count=PAGE + 1)
    shown, next_token = _page(found)
    return shapes.ListSubscriptionsReply(subscriptions=shown, next_token=next_token)


async def list_of_topic(
    call: Call, request: shapes.ListSubscriptionsByTopicRequest
) -> shapes.ListSubscriptionsByTopicReply:
    topic, after = topic_of(call, request.topic_arn), _read_token(request.next_token)
    found = call.context.subscriptions.page_of_topic(topic.topic_id, after=after, count=PAGE + 1)
    shown, next_token = _page(found)
    return shapes.ListSubscriptionsByTopicReply(subscriptions=shown, next_token=next_token)


def _page(found: Sequence[Subscription]) -> tuple[list[shapes.Subscription], str | None]:
    shown = [
        shapes.Subscription(
            subscription_arn=(
                _PENDING_LISTED if one.state is SubscriptionState.PENDING else one.arn
            ),
            owner=one.account,
            protocol=one.protocol,
            endpoint=one.endpoint,
            topic_arn=one.source_arn,
        )
        for one in found[:PAGE]
        if ":sns:" in one.source_arn  # others are webhooks of queues and streams
    ]
    if len(found) <= PAGE:
        return shown, None
    return shown, base64.b64encode(found[PAGE - 1].id.encode()).decode()


def _read_token(token: str | None) -> str:
    try:
        return base64.b64decode((token or "").encode(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("NextToken") from None


# ── Attributes ───────────────────────────────────────────────────────────────────────────────


async def _found(call: Call, arn: str | None) -> tuple[Topic, Subscription]:
    address = arns.parse_subscription(arn, caller=call.account)
    one = await call.context.subscriptions.learn(address.id)
    if one is None or one.arn != str(address) or one.region != call.region:
        raise subscription_not_found()
    topic = call.context.everything.find_id(one.topic_id)
    if topic is None:
        raise topic_not_found()
    return topic, one


async def get_attributes(
    call: Call, request: shapes.GetSubscriptionAttributesRequest
) -> shapes.GetSubscriptionAttributesReply:
    topic, one = await _found(call, request.subscription_arn)
    attributes = subscription_attributes.show(topic, one)
    return shapes.GetSubscriptionAttributesReply(attributes=attributes)


async def set_attributes(call: Call, request: shapes.SetSubscriptionAttributesRequest) -> None:
    topic, one = await _found(call, request.subscription_arn)
    name, text = request.attribute_name, request.attribute_value or ""
    if not name:
        raise null_value("attributeName")
    now_ms, replayed = call.context.clock.wall_ms(), None
    if name == REPLAY and text:
        times = replay_policy.read_policy(text, prefix=ON_SET, now_ms=now_ms)
        if one.state is SubscriptionState.CONFIRMED:
            replayed = await _range(call, topic, times, await _ends(call, topic))

    def change(current: Subscription) -> Subscription:
        after = subscription_attributes.changed(topic, current, name, text)
        current = msgspec.structs.replace(current, attributes=after)
        if replayed is not None:
            starts, until = replayed
            return replay_policy.with_replay(current, starts=starts, until=until, now_ms=now_ms)
        is_ended = name == REPLAY and not text
        return replay_policy.without_replays(current) if is_ended else current

    change(one)  # raises the caller's faults before the metadata store is called
    try:
        await call.context.subscriptions.change(one.id, change)
    except NotFound:
        raise subscription_not_found() from None
