"""The access policy, redrive policies and tags of a queue."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.access import evaluation
from penstock.access.conditions import MalformedPolicy
from penstock.model.limits import TAGS_MAX
from penstock.model.names import is_account
from penstock.model.ports import Catalog
from penstock.model.topic import Redrive, Topic
from penstock.wire.aws.faults import fault, invalid_value, missing
from penstock.wire.aws.queue_urls import parse_arn
from penstock.wire.aws.shapes import OPERATIONS

ACTIONS_MAX = 7
ATTEMPTS_MAX = 1_000
SOURCE_ARNS_MAX = 10
TAG_KEY_MAX = 128  # characters
TAG_VALUE_MAX = 256
STATEMENTS_MAX = evaluation.STATEMENTS_MAX[evaluation.Kind.RESOURCE]

# Actions that SQS does not allow a policy to grant to another account.
OWNER_ONLY = (
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
)
Tags = Mapping[str, str]
T = TypeVar("T", bound=msgspec.Struct)
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_COUNT = re.compile(r"[0-9]{1,9}\Z")


def check_policy(text: str) -> str:
    try:
        evaluation.compile_policy(text, evaluation.Kind.RESOURCE)
    except MalformedPolicy as error:
        text = f"Invalid value for the parameter Policy. Reason: {error}"
        raise fault("InvalidAttributeValue", text) from None
    return text


def add_permission(
    policy: str | None, *, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]
) -> str:
    _check_grant(label, accounts, actions)
    document: dict[str, Any] = (_json_object(policy) if policy else None) or {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
    }
    statements = _statements(document)
    if any(_sid(one) == label for one in statements):
        raise invalid_value(label, "Label", "Already exists.")
    if len(statements) >= STATEMENTS_MAX:
        found = f"{len(statements) + 1} statements were found"
        raise fault("OverLimit", f"{found}, maximum allowed is {STATEMENTS_MAX}.")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many([f"arn:aws:iam::{one}:root" for one in accounts])},
        "Action": _one_or_many([f"SQS:{one}" for one in actions]),
        "Resource": arn,
    }
    return check_policy(_text(document | {"Statement": [*statements, statement]}))


def remove_permission(policy: str | None, *, label: str) -> str | None:
    document = _json_object(policy) if policy else None
    if document is None:
        raise invalid_value(label, "Label", "can't find label.")
    statements = _statements(document)
    kept = [one for one in statements if _sid(one) != label]
    if len(kept) == len(statements):
        raise invalid_value(label, "Label", "can't find label on existing policy.")
    return _text(document | {"Statement": kept}) if kept else None


def _check_grant(label: str, accounts: Sequence[str], actions: Sequence[str]) -> None:
    if not accounts:
        raise invalid_value("[]", "PrincipalId", "Unable to verify.")
    if not actions:
        raise missing("Actions")
    if _LABEL.match(label) is None:
        reason = "Can only include alphanumeric characters, hyphens, or underscores."
        raise invalid_value(label, "Label", reason)
    if len(actions) > ACTIONS_MAX:
        text = f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}."
        raise fault("OverLimit", text)
    for account in accounts:
        if not is_account(account):
            raise invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in actions:
        reason = ""
        if action in OWNER_ONLY:
            reason = "Only the queue owner is allowed to invoke this action."
        elif action != "*" and action not in OPERATIONS:
            reason = "Please refer to the appropriate WSDL for a list of valid actions."
        if reason:
            raise invalid_value(f"SQS:{action}", "ActionName", reason)


def _statements(document: dict[str, Any]) -> list[Any]:
    statement = document.get("Statement", [])
    return statement if isinstance(statement, list) else [statement]


def _sid(statement: object) -> object:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def parse_redrive(text: str) -> Redrive | None:
    return _parsed(text, "RedrivePolicy", _redrive)


def _parsed(text: str, name: str, read: Callable[[dict[str, Any] | None], T | str]) -> T | None:
    """Parse and check a policy. Returns None for an empty text, which removes the policy."""
    if not text:
        return None
    found = read(_json_object(text))
    if isinstance(found, str):
        raise invalid_value(text, name, found)
    return found


def _redrive(document: dict[str, Any] | None) -> Redrive | str:
    if document is None:
        return "Redrive policy is not a valid JSON map."
    for name in ("deadLetterTargetArn", "maxReceiveCount"):
        if name not in document:
            return f"Redrive policy does not contain mandatory attribute: {name}."
    if len(document) != 2:
        return "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount]."
    target, given = document["deadLetterTargetArn"], document["maxReceiveCount"]
    if not isinstance(target, str) or parse_arn(target) is None:
        return "Invalid value for deadLetterTargetArn."
    count = int(given) if isinstance(given, str) and _COUNT.match(given) else given
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= ATTEMPTS_MAX:
        text = f"Invalid value for maxReceiveCount: {given}, valid values are from 1 to"
        return f"{text} {ATTEMPTS_MAX} both inclusive."
    return Redrive(target_arn=target, attempts_max=count)


def redrive_text(redrive: Redrive) -> str:
    target, count = redrive.target_arn, redrive.attempts_max
    return _text({"deadLetterTargetArn": target, "maxReceiveCount": count})


class RedriveAllow(msgspec.Struct, frozen=True):
    """Says which queues may use this queue as their dead-letter queue."""

    permission: str  # allowAll, denyAll or byQueue
    source_arns: tuple[str, ...] = ()

    def allows(self, source_arn: str) -> bool:
        if self.permission == "byQueue":
            return source_arn in self.source_arns
        return self.permission == "allowAll"


def parse_redrive_allow(text: str) -> RedriveAllow | None:
    return _parsed(text, "RedriveAllowPolicy", _redrive_allow)


def _redrive_allow(document: dict[str, Any] | None) -> RedriveAllow | str:
    if document is None:
        return "Redrive allow policy is not a valid JSON map."
    if not document.keys() <= {"redrivePermission", "sourceQueueArns"}:
        return "Only following attributes are supported: [redrivePermission, sourceQueueArns]."
    permission, arns = document.get("redrivePermission"), document.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        return "redrivePermission must be one of allowAll, denyAll, byQueue."
    if permission != "byQueue":
        if arns:
            return "sourceQueueArns needs redrivePermission byQueue."
        return RedriveAllow(permission)
    if not isinstance(arns, list) or not 1 <= len(arns) <= SOURCE_ARNS_MAX:
        return f"byQueue needs 1 to {SOURCE_ARNS_MAX} sourceQueueArns."
    if not all(isinstance(one, str) and parse_arn(one) is not None for one in arns):
        return "sourceQueueArns must be ARNs of queues."
    return RedriveAllow(permission, tuple(arns))


def check_target(catalog: Catalog, source: Topic, redrive: Redrive) -> None:
    target = catalog.find_arn(redrive.target_arn)
    reason = "Dead letter target does not exist." if target is None else _objection(target, source)
    if reason is not None:
        raise invalid_value(redrive_text(redrive), "RedrivePolicy", reason)


def _objection(target: Topic, source: Topic) -> str | None:
    if (target.account, target.region) != (source.account, source.region):
        return "Dead-letter target owner should be same as the source."
    if target.is_share:
        return "Dead-letter target must be a queue that messages can be sent to."
    if target.kind is not source.kind:
        return "Dead-letter target must be same type of queue as the source."
    if target.name == source.name and source.is_fifo:
        # A standard queue may be its own target: the message goes to the end of the queue. In a
        # FIFO queue, deduplication would drop the message when it returns a second time.
        return "Dead-letter target of a FIFO queue must be another queue."
    allow = parse_redrive_allow(target.settings.redrive_allow or "")
    if allow is not None and not allow.allows(source.arn):
        return "The dead-letter target's RedriveAllowPolicy does not allow this source queue."
    return None


def sources_of(catalog: Catalog, target: Topic) -> Sequence[Topic]:
    topics = catalog.topics(target.account, target.region)
    found = ((topic, topic.settings.redrive) for topic in topics)
    return [each for each, redrive in found if redrive and redrive.target_arn == target.arn]


def merged_tags(current: Tags, given: Tags, *, queue_name: str) -> dict[str, str]:
    tags = {**current, **given}
    if len(tags) > TAGS_MAX:
        raise fault("InvalidParameterValue", f"Too many tags added for queue {queue_name}.")
    return tags


def checked_tags(given: Mapping[str, str | None]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for key, value in given.items():
        if value is None:
            raise fault("InvalidParameterValue", "the parameter 'value' may not be null")
        if not 1 <= len(key) <= TAG_KEY_MAX:
            raise invalid_value(key, "Tag.Key", f"must be 1 to {TAG_KEY_MAX} characters long.")
        if len(value) > TAG_VALUE_MAX:
            reason = f"must be at most {TAG_VALUE_MAX} characters long."
            raise invalid_value(value, "Tag.Value", reason)
        tags[key] = value
    return tags


def check_tag_keys(keys: Sequence[str]) -> None:
    if not all(1 <= len(key) <= TAG_KEY_MAX for key in keys or ("",)):
        text = f"Tag keys must be between 1 and {TAG_KEY_MAX} characters in length."
        raise fault("InvalidParameterValue", text)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _text(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()
