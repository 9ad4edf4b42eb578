"""What usage and audit entries say about an SNS request: its topic, and its parameters without
messages, tokens and passwords.

Usage counts a topic under the name of its stream, such as ``sns.orders``, like the records that
Kafka clients write to it and the bytes that it stores. A queue may have the name ``orders`` too."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.frontend.aws.context import Call
from penstock.model.errors import Throttled
from penstock.model.topic import Topic
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url


def given_arn(request: Any) -> str | None:
    """Return the ARN in a request: of a topic, or of a subscription."""
    names = ("topic_arn", "target_arn", "resource_arn", "subscription_arn")
    found = (getattr(request, name, None) for name in names)
    return next((arn for arn in found if arn), None)


def topic_arn(call: Call) -> arns.TopicArn | None:
    """Return the ARN of the topic that a request names, which may not exist."""
    request, account = call.request, call.account
    if isinstance(request, shapes.CreateTopicRequest):
        name = request.name or ""
        return arns.TopicArn(call.region, account, name) if arns.is_topic_name(name) else None
    arn = given_arn(request) or ""
    try:
        if isinstance(request, shapes.SubscriptionRequest):
            return arns.parse_subscription(arn, caller=account).topic
        # A link in a message is not signed, so only the ARN tells the region.
        region = ":".join(arn.split(":", 4)[3:4]) if call.scope is None else call.region
        return arns.parse_topic(arn, caller=account, region=region)
    except Fault:
        return None


def topic_of(call: Call) -> Topic | None:
    """Return the topic that a request names, if it exists."""
    arn = topic_arn(call)
    if arn is None:
        return None
    try:
        return call.context.everything.find_sns(arn.account, arn.region, arn.name)
    except Throttled:  # the catalog of another node may not reply now
        return None


def _endpoint(text: str | None) -> str:
    """Return an endpoint without the password of a URL, which may be malformed."""
    try:
        return parse_endpoint_url(text or "").shown
    except UrlInvalid:
        login, _, host = (text or "").rpartition("@")
        if ":" not in login:  # a mail address has none before the at sign
            return text or ""
        scheme, mark, _ = login.partition("://")
        return f"{scheme}{mark}****@{host}" if mark else f"****@{host}"


def _attribute(request: Any) -> Mapping[str, object]:
    return {"attributes": {request.attribute_name or "": request.attribute_value or ""}}


def _tags(request: Any) -> list[str]:
    return sorted(tag.key or "" for tag in request.tags or ())


def _book(request: Any) -> Mapping[str, object]:
    """Return what identifies an entry of an address book, and the names of the attributes that
    change: their values may be credentials."""
    names = ("name", "platform", "platform_application_arn", "endpoint_arn", "phone_number")
    given = {name: getattr(request, name, None) for name in names}
    found: dict[str, object] = {name: text for name, text in given.items() if text is not None}
    attributes = getattr(request, "attributes", None)
    return found | ({"attributes": sorted(attributes)} if attributes else {})


# The parameters to record of each audited action, besides the topic.
PARAMS: Final[Mapping[str, Callable[[Any], Mapping[str, object]]]] = {
    "sns:AddPermission": lambda request: {
        "label": request.label,
        "accounts": request.aws_account_id,
        "actions": request.action_name,
    },
    "sns:ConfirmSubscription": lambda request: {
        "authenticate_on_unsubscribe": request.authenticate_on_unsubscribe,
    },
    "sns:CreateTopic": lambda request: {
        "attributes": request.attributes,
        "tags": _tags(request),
    },
    "sns:DeleteTopic": lambda _: {},
    "sns:PutDataProtectionPolicy": lambda request: {"policy": request.data_protection_policy},
    "sns:RemovePermission": lambda request: {"label": request.label},
    "sns:SetSubscriptionAttributes": lambda request: {
        "subscription": request.subscription_arn,
        **_attribute(request),
    },
    "sns:SetTopicAttributes": _attribute,
    "sns:Subscribe": lambda request: {
        "protocol": request.protocol,
        "endpoint": _endpoint(request.endpoint),
        "attributes": request.attributes,
    },
    "sns:TagResource": lambda request: {"tags": _tags(request)},
    "sns:Unsubscribe": lambda request: {"subscription": request.subscription_arn},
    "sns:UntagResource": lambda request: {"tags": sorted(request.tag_keys or ())},
    **dict.fromkeys(
        (
            "sns:CreatePlatformApplication",
            "sns:CreatePlatformEndpoint",
            "sns:CreateSMSSandboxPhoneNumber",
            "sns:DeleteEndpoint",
            "sns:DeletePlatformApplication",
            "sns:DeleteSMSSandboxPhoneNumber",
            "sns:OptInPhoneNumber",
            "sns:SetEndpointAttributes",
            "sns:SetPlatformApplicationAttributes",
            "sns:SetSMSAttributes",
            "sns:VerifySMSSandboxPhoneNumber",
        ),
        _book,
    ),
}
