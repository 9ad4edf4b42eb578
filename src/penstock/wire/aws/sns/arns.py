"""ARNs of topics, subscriptions, mobile apps and devices, names of topics, and the errors for those
that are malformed.

A topic is ``arn:<partition>:sns:<region>:<account>:<name>``; a subscription adds ``:<uuid>``. In
place of the name, a platform application has ``app/<platform>/<name>`` and a platform endpoint
``endpoint/<platform>/<application>/<uuid>``. A well-formed ARN with an impossible name is not an
error here: nothing with that name exists."""

import re

import msgspec

from penstock.model.names import FIFO_SUFFIX, arn_partition
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.faults import fault, invalid, no_value

NAME_CHARS_MAX = 256  # with .fifo
_ARN_CHARS_MAX = 1_024  # of a valid ARN; audit rows repeat it
_ELEMENTS = 6
_UUID_CHARS = 36
_SLASHES = "Wrong number of slashes in relative portion of the ARN."
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?\Z")


class TopicArn(msgspec.Struct, frozen=True, gc=False):
    region: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"arn:{arn_partition(self.region)}:sns:{self.region}:{self.account}:{self.name}"


class SubscriptionArn(msgspec.Struct, frozen=True, gc=False):
    topic: TopicArn
    id: str  # a UUID

    def __str__(self) -> str:
        return f"{self.topic}:{self.id}"


class ApplicationArn(msgspec.Struct, frozen=True, gc=False):
    region: str
    account: str
    platform: str
    name: str


class EndpointArn(msgspec.Struct, frozen=True, gc=False):
    application: ApplicationArn
    id: str  # a UUID


def is_topic_name(name: str) -> bool:
    return len(name) <= NAME_CHARS_MAX and _NAME.match(name) is not None


def check_topic_name(name: str | None, *, is_fifo: bool) -> str:
    if name is None or not is_topic_name(name) or name.endswith(FIFO_SUFFIX) != is_fifo:
        raise invalid("Topic Name")
    return name


def parse_topic(arn: str | None, *, caller: str, region: str) -> TopicArn:
    """Parse the TopicArn of a request that was signed for ``region`` by the account ``caller``."""
    address = _parse(arn, "TopicArn", caller)
    if address is None or address.region != region:
        raise invalid("TopicArn")
    return address


def parse_confirmed_topic(arn: str | None, *, caller: str) -> TopicArn:
    """Parse the TopicArn of ConfirmSubscription, which has its own error. The request may be signed
    for another region."""
    try:
        address = _parse(arn, "TopicArn", caller)
    except Fault:
        address = None
    if address is None:
        raise invalid("Topic")
    return address


def parse_subscription(arn: str | None, *, caller: str) -> SubscriptionArn:
    if arn is None:
        raise no_value("SubscriptionArn")
    address = _parse(arn, "SubscriptionArn", caller)
    if address is None:
        raise invalid("SubscriptionArn")
    name, mark, subscription_id = address.name.partition(":")
    if not mark:
        raise invalid("SubscriptionId")
    topic = TopicArn(address.region, address.account, name)
    return SubscriptionArn(topic, subscription_id)


def parse_tagged(arn: str | None, *, caller: str, region: str) -> TopicArn:
    """Parse the ResourceArn of a request about tags."""
    try:
        return parse_topic(arn, caller=caller, region=region)
    except Fault:
        raise fault("ResourceNotFound") from None


def parse_application(arn: str | None, *, caller: str) -> ApplicationArn:
    parameter = "PlatformApplicationArn"
    address = _parse(arn, parameter, caller)
    if address is None:
        raise invalid(parameter)
    parts = address.name.split("/", 3)
    if len(parts) != 3 or parts[0] != "app":
        raise invalid(parameter, _SLASHES)
    return ApplicationArn(address.region, address.account, parts[1], parts[2])


def is_endpoint(arn: str) -> bool:
    """Return whether an ARN names a platform endpoint, which may not exist, and not a topic."""
    return ":endpoint/" in arn


def parse_endpoint(arn: str | None, *, caller: str) -> EndpointArn:
    parameter = "EndpointArn"
    address = _parse(arn, parameter, caller)
    if address is None:
        raise invalid(parameter)
    parts = address.name.split("/", 4)
    if len(parts) != 4 or parts[0] != "endpoint":
        raise invalid(parameter, _SLASHES)
    _, platform, name, endpoint_id = parts
    if len(endpoint_id) != _UUID_CHARS:
        raise invalid(
            parameter,
            "ARN specifies an invalid endpointId: UUID must be encoded in exactly"
            f" {_UUID_CHARS} characters.",
        )
    application = ApplicationArn(address.region, address.account, platform, name)
    return EndpointArn(application, endpoint_id)


def _parse(arn: str | None, parameter: str, caller: str) -> TopicArn | None:
    """Return the parts of an ARN, or None if it is not an ARN of SNS."""
    arn = arn or ""
    parts = arn.split(":", _ELEMENTS - 1)
    if len(parts) < _ELEMENTS:
        reason = f"An ARN must have at least {_ELEMENTS} elements, not {len(parts)}"
        raise invalid(parameter, reason)
    scheme, partition, service, region, account, name = parts
    if scheme != "arn" or not partition.startswith("aws") or service != "sns":
        return None
    if len(arn) > _ARN_CHARS_MAX:
        return None
    return TopicArn(region, account or caller, name)
