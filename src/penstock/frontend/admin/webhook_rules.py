"""Which sources and settings a webhook may have, and who may read a source."""

from typing import Final

from msgspec.structs import replace

from penstock.frontend.admin.request import Call
from penstock.model.acls import Operation, Permission, ResourceType, host_of
from penstock.model.errors import AccessDenied, InvalidRequest, NotFound
from penstock.model.identity import Circumstances
from penstock.model.limits import SUBSCRIPTION_PARTITIONS_MAX
from penstock.model.names import is_for_operators, split_share
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.wire.aws.sns.filter_policy import InvalidFilterPolicy, Scope, compile_policy
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url
from penstock.wire.webhooks.settings import CONSUME, InvalidSettings, WebhookSettings

UNORDERED: Final = "none"


def find_source(call: Call, name: str) -> Topic:
    """Find a topic by its name or ARN. A queue or Kafka topic has precedence over an SNS topic of
    the same name."""
    catalog, info = call.context.everything, call.context.info
    account, region = call.text("account") or info.account, call.region
    if name.startswith("arn:"):
        topic = catalog.find_arn(name) or _sns_topic(call, name)
        if topic is not None and not call.caller.is_operator and topic.account != account:
            topic = None
    else:
        topic = catalog.find(account, region, name) or catalog.find_sns(account, region, name)
    if topic is None:
        raise NotFound(f"There is no queue or topic {name[:256]}.")
    return topic


def _sns_topic(call: Call, arn: str) -> Topic | None:
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[2] != "sns":
        return None
    topic = call.context.everything.find_sns(parts[4], parts[3], parts[5])
    return topic if topic is not None and topic.sns_arn == arn else None


def endpoint_of(text: str) -> str:
    try:
        url = parse_endpoint_url(text)
    except UrlInvalid as error:
        raise InvalidRequest(str(error)) from None
    if url.authorization:
        raise InvalidRequest("The URL must not contain a password: set auth instead.")
    return url.shown


def check_readable(call: Call, topic: Topic, mode: str = "") -> None:
    """Raise AccessDenied if the caller may not read the source of a subscription."""
    if call.caller.is_operator:
        return
    if topic.sns is not None and topic.sns_arn is not None:
        policy = topic.sns.attributes.get("Policy") or None
        _require(call, "sns:Subscribe", topic.sns_arn, owner=topic.account, policy=policy)
    elif topic.is_queue:
        call.may("sqs:ReceiveMessage", topic.arn, topic)
        if mode == CONSUME:
            call.may("sqs:DeleteMessage", topic.arn, topic)
    else:
        _check_kafka(call, topic)


def _require(call: Call, action: str, arn: str, *, owner: str, policy: str | None) -> None:
    """Raise AccessDenied if the caller may not use an SNS topic. A topic of another tenant, to
    which the caller has subscribed, needs a policy that still allows the action."""
    caller, decisions = call.caller, call.context.decisions
    assert decisions is not None, "a caller who is not an operator has an identity"
    decision = decisions.decide(
        caller,
        action,
        arn=arn,
        owner=owner,
        policy=policy,
        circumstances=lambda: Circumstances(call.peer, call.is_tls, call.now_ms),
    )
    if not decision.is_allowed:
        raise AccessDenied(f"{caller.user} may not perform {action} on {arn}.")


def _check_kafka(call: Call, topic: Topic) -> None:
    """Check access rules and policies as for a Kafka client: a denial by one of them wins."""
    rules = call.identities.acls(topic.account)
    decided = None
    if rules is not None:
        decided = rules.decide(
            Operation.READ,
            ResourceType.TOPIC,
            name=topic.name,
            principal=f"User:{call.caller.user}",
            host=host_of(call.peer),
        )
    if decided is Permission.DENY:
        raise AccessDenied(f"{call.caller.user} may not perform kafka:Read on {topic.arn}.")
    decision = call.decision(call.caller, "kafka:Read", topic.arn, topic)
    if decided is Permission.ALLOW and not decision.is_explicit:
        return
    call.may("kafka:Read", topic.arn, topic)


def check_source(topic: Topic) -> None:
    name = topic.name
    if topic.is_share:
        source = (split_share(name) or (name, ""))[0]
        raise InvalidRequest(f"{name} is a share; create the webhook on {source} instead.")
    if is_for_operators(name) and not topic.is_queue:
        raise InvalidRequest(f"{name} is an internal topic; it cannot have webhooks.")
    if settings_of(topic).is_compacted:
        raise InvalidRequest(f"{name} is a compacted topic; it cannot have webhooks.")
    if topic.partition_count > SUBSCRIPTION_PARTITIONS_MAX:
        raise InvalidRequest(
            f"{name} has {topic.partition_count:,} partitions; a topic with webhooks can have at"
            f" most {SUBSCRIPTION_PARTITIONS_MAX:,}."
        )


def checked_settings(
    call: Call, topic: Topic, settings: WebhookSettings, *, dead_letter_before: str = ""
) -> WebhookSettings:
    """Check settings against the source. Messages of a FIFO source are always sent in order. The
    dead-letter queue is checked if it changes: it may have been deleted since."""
    if settings.filter:
        try:
            compile_policy(settings.filter, scope=Scope(settings.filter_scope))
        except InvalidFilterPolicy as error:
            text = str(error).removeprefix("FilterPolicy: ")
            raise InvalidSettings(f"filter: {text}") from None
    if settings.mode == CONSUME and not topic.is_queue:
        raise InvalidSettings(f"mode {CONSUME} is for queues; {topic.name} is a topic: use tap.")
    if topic.is_fifo and settings.ordered == UNORDERED:
        settings = replace(settings, ordered="group")
    if settings.mode == CONSUME and settings.ordered != UNORDERED and not topic.is_fifo:
        raise InvalidSettings(f"ordered needs mode tap, because {topic.name} is not a FIFO queue.")
    if settings.dead_letter not in ("", dead_letter_before):
        _check_dead_letter(call, topic, settings.dead_letter)
    return settings


def _check_dead_letter(call: Call, topic: Topic, name: str) -> None:
    catalog = call.context.everything
    if name.startswith("arn:"):
        queue = catalog.find_arn(name)
    else:
        queue = catalog.find(topic.account, topic.region, name)
    if queue is None or queue.account != topic.account or not queue.is_queue or queue.is_share:
        raise InvalidSettings(f"dead_letter: this tenant has no queue {name}.")
    if queue.topic_id == topic.topic_id:
        raise InvalidSettings("dead_letter cannot be the source of the webhook.")
    if queue.is_fifo and not topic.is_fifo:
        raise InvalidSettings(
            f"dead_letter cannot be a FIFO queue, because {topic.name} is not FIFO."
        )
    if not call.caller.is_operator:
        call.may("sqs:SendMessage", queue.arn, queue)
