"""Publish, to a topic or to a single endpoint: a phone number or a platform endpoint.

No log keeps a message that has no topic. So the reply comes after the courier's: if the gateway
does not accept the message, the client gets an error and can retry."""

from collections.abc import Mapping
from typing import Final

from penstock.flow.verdicts import Action, Failure, Kind, judge
from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.actions import address_books
from penstock.frontend.aws.sns.actions.publish import publish as publish_to_topic
from penstock.model.message import Attribute
from penstock.model.names import uuid_text
from penstock.model.sent_message import SentMessage
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns, book_rules, shapes
from penstock.wire.aws.sns.faults import fault, invalid
from penstock.wire.aws.sns.publish_checks import check_publish, target_of, texts_of

SMS: Final = "sms"


def is_direct(request: shapes.PublishRequest) -> bool:
    """Return whether a message is published to a phone number or a platform endpoint."""
    if request.topic_arn:
        return False
    if request.target_arn:
        return arns.is_endpoint(request.target_arn)
    return bool(request.phone_number)


async def publish(call: Call, request: shapes.PublishRequest) -> shapes.PublishReply:
    if not is_direct(request):
        return await publish_to_topic(call, request)
    target = target_of(request)
    protocol = address_books.APPLICATION if request.target_arn else SMS
    books = address_books.books_for(call, protocol)
    if request.target_arn:
        try:
            endpoint = address_books.find_endpoint(
                call, arns.parse_endpoint(target, caller=call.account)
            )
        except Fault:
            endpoint = None
        if endpoint is None:
            text = "No endpoint found for the target arn specified"
            raise invalid("TargetArn", text)
        if not endpoint.is_enabled:
            raise fault("EndpointDisabled")
        application = books.application(
            (endpoint.account, endpoint.region, endpoint.platform, endpoint.application)
        )
        if application is None or not application.is_enabled:
            raise fault("PlatformApplicationDisabled")
    checked = check_publish(request)
    body = checked.body
    if checked.is_structured:
        body = book_rules.text_for(texts_of(body), protocol, target).encode(errors="replace")
    attributes: Mapping[str, Attribute] = checked.attributes or {}
    if protocol == SMS:
        attributes = book_rules.with_sms_defaults(books.sms(call.account, call.region), attributes)
    message = SentMessage(
        uuid_text(call.context.entropy(16)),
        target,
        body,
        call.context.clock.wall_ms(),
        checked.subject,
        attributes=attributes,
    )
    await carry(call, protocol, message)
    call.context.meter.sent(1, checked.size)
    return shapes.PublishReply(message_id=message.message_id)


async def carry(call: Call, protocol: str, message: SentMessage) -> None:
    """Send a message, and wait until the courier has delivered it. Raises a fault if not."""
    assert call.context.couriers is not None
    result = await call.context.couriers.deliver(protocol, call.account, message)
    verdict = judge(Kind.SNS, result, attempt=1, age_ms=0, schedule=lambda *_: 0)
    if verdict.action is Action.DELIVERED:
        return
    reason = str(result) if isinstance(result, Failure) else f"the gateway replied {result}"
    if verdict.action is Action.RETRY:
        raise fault("ServiceUnavailable", f"The message was not delivered: {reason}. Retry.")
    raise invalid("Message", f"the message was rejected: {reason}")
