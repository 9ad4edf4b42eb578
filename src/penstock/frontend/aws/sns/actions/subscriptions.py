"""Actions that subscribe endpoints to SNS topics, confirm, list, change and delete subscriptions.

A queue of the owner's account is confirmed at once. Any other endpoint gets a message with a token
and must send it back within 48 hours. A subscription gets the messages that are published after its
confirmation: its entry contains the ends of the topic's logs at that time."""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.actions.topics import topic_of
from penstock.frontend.aws.sns.rules import subscription_attributes
from penstock.model.calls import Ends
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.names import FIFO_SUFFIX
from penstock.model.subscription import RANDOM_BYTES, Subscription, SubscriptionState, new_id
from penstock.model.topic import Topic
from penstock.wire.aws.queue_urls import parse_arn
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.aws.sns.faults import (
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
_HTTP: Final = ("http", "https")


async def subscribe(call: Call, request: shapes.SubscribeRequest) -> shapes.SubscribeReply:
    topic = topic_of(call, request.topic_arn)
    protocol, endpoint = request.protocol, request.endpoint
    if not endpoint:
        raise no_value("Endpoint")
    if not protocol:
        raise null_value("protocol")
    _check_endpoint(topic, protocol, endpoint)
    attributes = subscription_attributes.read_new(
        topic, protocol, endpoint, request.attributes or {}
    )
    subscriptions = call.context.subscriptions
    one = subscriptions.find_endpoint(topic.topic_id, protocol, endpoint)
    if one is None:
        one = await subscriptions.create(
            await _new_subscription(call, topic, protocol, endpoint, attributes)
        )
    if subscription_attributes.first_difference(attributes, one) is not None:
        text = "Subscription already exists with different attributes"
        raise invalid("Attributes", text)
    is_pending = one.state is SubscriptionState.PENDING
    is_hidden = is_pending and not request.return_subscription_arn
    return shapes.SubscribeReply(subscription_arn=PENDING_ARN if is_hidden else one.arn)


def _check_endpoint(topic: Topic, protocol: str, endpoint: str) -> None:
    if protocol == "sqs":
        if parse_arn(endpoint) is None:
            raise invalid("SQS endpoint ARN")
        if endpoint.endswith(FIFO_SUFFIX) and not topic.is_fifo:
            text = "FIFO SQS Queues can not be subscribed to standard SNS topics"
            raise invalid("Invalid parameter: Endpoint", text)  # SNS repeats the first words
    else:
        raise invalid(f"Amazon SNS does not support this protocol string: {protocol}")


async def _new_subscription(
    call: Call, topic: Topic, protocol: str, endpoint: str, attributes: dict[str, str]
) -> Subscription:
    context, now_ms = call.context, call.context.clock.wall_ms()
    random = context.entropy(RANDOM_BYTES)
    one = Subscription(
        id=new_id(topic.topic_id, protocol, endpoint, random=random),
        topic_id=topic.topic_id,
        source_arn=topic.sns_arn or "",
        account=call.account,
        region=topic.region,
        protocol=protocol,
        endpoint=endpoint,
        created_at_ms=now_ms,
        principal=_principal(call),
        attributes=attributes,
        base_url=_base_url(call),
    )
    queue = parse_arn(endpoint) if protocol == "sqs" else None
    if queue is None or not (context.config.is_dev or queue.account == topic.account):
        return one
    return await _confirmed(call, topic, one, is_authenticated=True)


async def _confirmed(
    call: Call, topic: Topic, one: Subscription, *, is_authenticated: bool
) -> Subscription:
    offsets = []
    for partition in range(topic.partition_count):
        ends = await call.context.broker.call(Ends(topic, partition))
        offsets.append(ends.high_watermark)
    return msgspec.structs.replace(
        one,
        state=SubscriptionState.CONFIRMED,
        confirmed_at_ms=call.context.clock.wall_ms(),
        was_authenticated=is_authenticated,
        start_offsets=tuple(offsets),
    )


def _principal(call: Call) -> str:
    caller = call.caller
    return f"arn:aws:iam::{call.account}:root" if caller.is_trusted else caller.arn


def _base_url(call: Call) -> str:
    """Return the beginning of links to this server, as the client that subscribes reaches it."""
    http, external = call.http, call.context.config.external_url
    scheme = "https" if http.is_tls else "http"
    return external or f"{scheme}://{http.headers.get('host', 'localhost')}"


async def confirm_subscription(
    call: Call, request: shapes.ConfirmSubscriptionRequest
) -> shapes.ConfirmSubscriptionReply:
    context = call.context
    try:
        token = read_token(context.token_key, request.token or "", now_ms=context.clock.wall_ms())
    except InvalidRequest:
        raise invalid("Token") from None
    arns.parse_confirmed_topic(request.topic_arn, caller=call.account, region=token.region)
    one = await context.subscriptions.learn(token.subscription_id)
    topic = None if one is None else context.everything.find_id(one.topic_id)
    if one is None or topic is None:
        raise invalid("Token")
    if one.state is SubscriptionState.PENDING:
        is_signed = call.scope is not None
        ready = await _confirmed(call, topic, one, is_authenticated=is_signed)
        needs_owner = (request.authenticate_on_unsubscribe or "").lower() == "true"

        def confirm(current: Subscription) -> Subscription:
            if current.state is not SubscriptionState.PENDING:
                return current
            return msgspec.structs.replace(ready, needs_owner=needs_owner)

        one = await context.subscriptions.change(one.id, confirm)
    return shapes.ConfirmSubscriptionReply(subscription_arn=one.arn)


async def unsubscribe(call: Call, request: shapes.UnsubscribeRequest) -> None:
    address = arns.parse_subscription(request.subscription_arn, caller=call.account)
    one = await call.context.subscriptions.learn(address.id)
    if one is None or one.arn != str(address):
        return
    if call.scope is None and one.needs_owner:
        raise fault("AuthorizationError", "Only the owner of this subscription may unsubscribe it.")
    await call.context.subscriptions.delete(one.id)


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


def _found(call: Call, arn: str | None) -> tuple[Topic, Subscription]:
    address = arns.parse_subscription(arn, caller=call.account)
    one = call.context.subscriptions.find(address.id)
    if one is None or one.arn != str(address):
        raise subscription_not_found()
    topic = call.context.everything.find_id(one.topic_id)
    if topic is None:
        raise topic_not_found()
    return topic, one


async def get_attributes(
    call: Call, request: shapes.GetSubscriptionAttributesRequest
) -> shapes.GetSubscriptionAttributesReply:
    topic, one = _found(call, request.subscription_arn)
    attributes = subscription_attributes.show(topic, one)
    return shapes.GetSubscriptionAttributesReply(attributes=attributes)


async def set_attributes(call: Call, request: shapes.SetSubscriptionAttributesRequest) -> None:
    topic, one = _found(call, request.subscription_arn)
    name, text = request.attribute_name, request.attribute_value or ""
    if not name:
        raise null_value("attributeName")

    def change(current: Subscription) -> Subscription:
        after = subscription_attributes.changed(topic, current, name, text)
        return msgspec.structs.replace(current, attributes=after)

    change(one)  # raises the caller's faults before the metadata store is called
    try:
        await call.context.subscriptions.change(one.id, change)
    except NotFound:
        raise subscription_not_found() from None
