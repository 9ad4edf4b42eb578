"""The attributes of a subscription: which can be set, their checks, and how they are shown.

Subscribe and SetSubscriptionAttributes reject a bad value with the same reason after different
words (``ON_CREATE``, ``ON_SET``)."""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.aws.sns.rules import replay_policy
from penstock.frontend.aws.sns.rules.endpoints import HTTP, SQS
from penstock.frontend.aws.sns.rules.replay_policy import REPLAY
from penstock.frontend.aws.sns.rules.topic_attributes import json_object
from penstock.model.names import FIFO_SUFFIX
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.model.topic import Topic
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.queue_urls import parse_arn
from penstock.wire.aws.sns import delivery_policy
from penstock.wire.aws.sns.faults import ON_CREATE, ON_SET, cut, fault, invalid
from penstock.wire.aws.sns.filter_policy import InvalidFilterPolicy, Scope, compile_policy

RAW: Final = "RawMessageDelivery"
FILTER: Final = "FilterPolicy"
SCOPE: Final = "FilterPolicyScope"
REDRIVE: Final = "RedrivePolicy"
DELIVERY: Final = "DeliveryPolicy"
SETTABLE: Final = (DELIVERY, FILTER, SCOPE, RAW, REDRIVE, "SubscriptionRoleArn", REPLAY)
_DEFAULTS: Final[Mapping[str, str]] = {RAW: "false", SCOPE: Scope.ATTRIBUTES.value}

Attributes = dict[str, str]


def read_new(
    topic: Topic, protocol: str, endpoint: str, given: Mapping[str, str], *, now_ms: int
) -> Attributes:
    """Check the attributes of a Subscribe request, and return those to store."""
    for name in given:
        if name not in SETTABLE:
            raise _refused(ON_CREATE, "AttributeName")
    if given.get(REPLAY):
        replay_policy.read_policy(given[REPLAY], prefix=ON_CREATE, now_ms=now_ms)
    return _checked(topic, protocol, endpoint, dict(given), tuple(given), ON_CREATE)


def changed(topic: Topic, one: Subscription, name: str, text: str) -> Attributes:
    """Return the attributes of a subscription after SetSubscriptionAttributes. A ReplayPolicy is
    checked by the action."""
    if name not in SETTABLE:
        raise invalid("AttributeName")
    after = {**one.attributes, name: text}
    if name == FILTER and not text:
        after.pop(SCOPE, None)  # the empty policy removes both
    return _checked(topic, one.protocol, one.endpoint, after, (name,), ON_SET)


def _checked(
    topic: Topic,
    protocol: str,
    endpoint: str,
    attributes: Attributes,
    names: tuple[str, ...],
    prefix: str,
) -> Attributes:
    """Check the attributes ``names``, which the request has given, and drop the empty ones."""
    if RAW in names:
        raw = attributes[RAW].lower()
        if raw not in ("true", "false"):
            text = f"Invalid value [{cut(attributes[RAW])}]. Must be true or false."
            raise _refused(prefix, f"{RAW}: {text}")
        attributes[RAW] = raw
    if SCOPE in names and attributes[SCOPE] not in [scope.value for scope in Scope]:
        text = f"Invalid value [{cut(attributes[SCOPE])}]."
        raise _refused(
            prefix, f"{SCOPE}: {text} Please use either MessageBody or MessageAttributes"
        )
    if attributes.get(FILTER) and (FILTER in names or SCOPE in names):
        try:
            compile_policy(attributes[FILTER], scope=scope_of(attributes))
        except InvalidFilterPolicy as error:
            raise _refused(prefix, str(error)) from None
    if REDRIVE in names and attributes[REDRIVE]:
        _check_redrive(topic, protocol, endpoint, attributes[REDRIVE], prefix)
    if DELIVERY in names and attributes[DELIVERY]:
        delivery_policy.read_subscription_policy(attributes[DELIVERY], prefix=prefix)
    return {name: text for name, text in attributes.items() if text}


def _check_redrive(topic: Topic, protocol: str, endpoint: str, text: str, prefix: str) -> None:
    document = json_object(text)
    if document is None:
        raise _refused(prefix, f"{REDRIVE}: failed to parse JSON. It must be an object")
    target = document.get("deadLetterTargetArn")
    if not isinstance(target, str) or parse_arn(target) is None:
        raise _refused(prefix, f"{REDRIVE}: deadLetterTargetArn is an invalid arn")
    is_fifo = topic.is_fifo and protocol == SQS and endpoint.endswith(FIFO_SUFFIX)
    if is_fifo and not target.endswith(FIFO_SUFFIX):
        text = "must use a FIFO queue as DLQ for a FIFO Subscription to a FIFO Topic."
        raise _refused(prefix, f"{REDRIVE}: {text}")


def _refused(prefix: str, text: str) -> Fault:
    return fault("InvalidParameter", prefix + text)


def scope_of(attributes: Mapping[str, str]) -> Scope:
    return Scope(attributes.get(SCOPE, Scope.ATTRIBUTES.value))


def first_difference(given: Attributes, one: Subscription) -> str | None:
    """Return the first given attribute that an existing subscription does not have."""
    for name, text in given.items():
        current = one.attributes.get(name, _DEFAULTS.get(name, ""))
        if name == DELIVERY and current:
            is_same = _read_delivery(text) == _read_delivery(current)
        else:
            is_same = text == current or json_object(text) == (json_object(current) or ())
        if not is_same:
            return name
    return None


def show(topic: Topic, one: Subscription) -> Attributes:
    is_pending = one.state is SubscriptionState.PENDING
    shown = {
        "SubscriptionArn": one.arn,
        "TopicArn": one.source_arn,
        "Protocol": one.protocol,
        "Endpoint": one.endpoint,
        "Owner": one.account,
        "SubscriptionPrincipal": one.principal,
        "PendingConfirmation": "true" if is_pending else "false",
        "ConfirmationWasAuthenticated": "true" if one.was_authenticated else "false",
        **_DEFAULTS,
        **one.attributes,
    }
    if FILTER not in one.attributes:
        del shown[SCOPE]
    if REPLAY in one.attributes:
        shown[replay_policy.STATUS] = replay_policy.status(one)
    if one.protocol in HTTP:
        given = one.attributes.get(DELIVERY)
        own = _read_delivery(given) if given else None
        above = topic.sns.attributes.get(DELIVERY) if topic.sns is not None else None
        defaults = delivery_policy.read_topic_policy(above, prefix=ON_SET) if above else None
        if own is not None:
            shown[DELIVERY] = delivery_policy.subscription_text(own)
        effective = delivery_policy.effective(defaults, own)
        shown["EffectiveDeliveryPolicy"] = delivery_policy.subscription_text(effective)
    return shown


def _read_delivery(text: str) -> delivery_policy.DeliveryPolicy:
    return delivery_policy.read_subscription_policy(text, prefix=ON_SET)
