"""The checks of Publish and PublishBatch, in the order of SNS and with its error texts.

Both return checked messages: the body and attributes as bytes, and the ids of a FIFO topic. Any
invalid entry of a batch rejects the whole request, except a message that is too long."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.model.limits import BATCH_ENTRIES_MAX, KIB
from penstock.model.message import Attribute
from penstock.model.names import RESERVED_PREFIX
from penstock.wire.aws.attributes import is_number, message_bytes
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.faults import cut, fault, invalid, no_value, null_value
from penstock.wire.aws.sns.shapes import (
    BatchResultErrorEntry,
    MessageAttributeValue,
    PublishBatchRequestEntry,
    PublishRequest,
)

MESSAGE_BYTES_DEFAULT: Final = 256 * KIB  # of a topic without MaximumMessageSize
_SUBJECT_CHARS_MAX = 100
_NAME_BYTES_MAX = 256
_ENTRY_ID_CHARS_MAX = 80

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]|\.\.")
_TYPE = re.compile(r"(String|Number|Binary)(?:\..+)?\Z", re.DOTALL)
_ID = re.compile(r"[!-~]{1,128}\Z")  # letters, digits and ASCII punctuation, no space
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_PHONE = re.compile(r"\+?[1-9][0-9]{1,14}\Z")  # E.164


class TopicRules(msgspec.Struct, frozen=True):
    """The attributes of a topic that decide which messages it accepts."""

    is_fifo: bool = False
    deduplicates_content: bool = False
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT


STANDARD: Final = TopicRules()


class Checked(msgspec.Struct, frozen=True):
    """A valid message."""

    body: bytes
    size: int  # of the body, and of the names, types and values of attributes
    subject: str | None
    attributes: dict[str, Attribute] | None
    is_structured: bool  # the body is a JSON document with a text for each protocol
    group: str | None
    dedup_id: str | None


class CheckedBatch(msgspec.Struct, frozen=True):
    messages: dict[str, Checked]  # by entry id, in the order of the request
    failed: list[BatchResultErrorEntry]


def target_of(request: PublishRequest) -> str:
    """Return the ARN or the phone number that a message is published to."""
    target = request.topic_arn or request.target_arn
    if target:
        return target
    number = request.phone_number
    if not number:
        raise no_value("TopicArn or TargetArn")
    if _PHONE.match(number) is None:
        raise invalid("PhoneNumber", f"{cut(number)} is not valid to publish to")
    return number


def check_publish(request: PublishRequest, rules: TopicRules = STANDARD) -> Checked:
    _check_subject(request.subject)
    body = _body(request.message, "message")
    attributes = _attributes(request.message_attributes, "")
    size = message_bytes(body, attributes)
    if size > rules.message_bytes_max:
        raise _too_long()
    _check_ids(request, rules)
    return _checked(request, body, size, attributes, rules)


def check_batch(
    entries: Sequence[PublishBatchRequestEntry] | None, rules: TopicRules = STANDARD
) -> CheckedBatch:
    if entries is not None and len(entries) > BATCH_ENTRIES_MAX:
        raise fault("TooManyEntriesInBatchRequest")
    if not entries:
        raise fault("EmptyBatchRequest")
    messages: dict[str, Checked] = {}
    failed: list[BatchResultErrorEntry] = []
    for number, (entry_id, entry) in enumerate(_with_ids(entries), 1):
        message = _check_entry(entry, f"publishBatchRequestEntries.{number}.member.", rules)
        if message.size <= rules.message_bytes_max:
            messages[entry_id] = message
        else:
            error = _too_long()
            failed.append(
                BatchResultErrorEntry(
                    id=entry_id, code=error.code, message=error.message, sender_fault=True
                )
            )
    total = sum(message.size for message in messages.values())
    if total > max(rules.message_bytes_max, MESSAGE_BYTES_DEFAULT):
        raise fault("BatchRequestTooLong")
    return CheckedBatch(messages, failed)


def _with_ids(
    entries: Sequence[PublishBatchRequestEntry],
) -> list[tuple[str, PublishBatchRequestEntry]]:
    named = []
    for number, entry in enumerate(entries, 1):
        if entry.id is None:
            raise null_value(f"publishBatchRequestEntries.{number}.member.id")
        named.append((entry.id, entry))
    if len({entry_id for entry_id, _ in named}) < len(named):
        raise fault("BatchEntryIdsNotDistinct")
    for entry_id, _ in named:
        text = "The Id of a batch entry in the batch request"
        if len(entry_id) > _ENTRY_ID_CHARS_MAX:
            raise fault("InvalidBatchEntryId", f"{text} is too long: {cut(entry_id)}")
        if _ENTRY_ID.match(entry_id) is None:
            text = f"{text} contains an impermissible character: {entry_id}"
            raise fault("InvalidBatchEntryId", text)
    return named


def _check_entry(entry: PublishBatchRequestEntry, path: str, rules: TopicRules) -> Checked:
    _check_subject(entry.subject)
    body = _body(entry.message, f"{path}message")
    attributes = _attributes(entry.message_attributes, path)
    message = _checked(entry, body, message_bytes(body, attributes), attributes, rules)
    _check_ids(entry, rules)
    return message


def _checked(
    request: PublishRequest | PublishBatchRequestEntry,
    body: bytes,
    size: int,
    attributes: dict[str, Attribute] | None,
    rules: TopicRules,
) -> Checked:
    is_structured = request.message_structure == "json"  # other values have no effect, as in SNS
    if is_structured and size <= rules.message_bytes_max:  # a longer message fails anyway
        texts_of(body)
    return Checked(
        body=body,
        size=size,
        subject=request.subject,
        attributes=attributes,
        is_structured=is_structured,
        group=request.message_group_id or None,
        dedup_id=request.message_deduplication_id or None,
    )


def _too_long() -> Fault:
    return invalid("Message too long")


def _check_subject(subject: str | None) -> None:
    if subject is None:
        return
    if not subject or _CONTROL.search(subject, 0, _SUBJECT_CHARS_MAX + 1) is not None:
        raise invalid("Subject")
    if len(subject) > _SUBJECT_CHARS_MAX:
        text = f"Subject must be less than {_SUBJECT_CHARS_MAX} characters"
        raise fault("InvalidParameter", text)


def _body(message: str | None, path: str) -> bytes:
    if message is None:
        raise null_value(path)
    if not message:
        raise invalid("Empty message")
    return message.encode(errors="replace")


def _check_ids(request: PublishRequest | PublishBatchRequestEntry, rules: TopicRules) -> None:
    group, dedup_id = request.message_group_id or None, request.message_deduplication_id or None
    if rules.is_fifo:
        if group is None:
            raise invalid("The MessageGroupId parameter is required for FIFO topics")
        if dedup_id is None and not rules.deduplicates_content:
            raise invalid(
                "The topic should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly"
            )
    elif dedup_id is not None:
        raise invalid(
            "MessageDeduplicationId",
            "The request includes MessageDeduplicationId parameter that is not valid for this "
            "topic type",
        )
    for name, text in (("MessageGroupId", group), ("MessageDeduplicationId", dedup_id)):
        if text is not None and _ID.match(text) is None:
            raise invalid(
                name,
                f"{name} can only include alphanumeric and punctuation characters. "
                "1 to 128 in length.",
            )


# ── Message attributes ───────────────────────────────────────────────────────────────────────


def _attributes(
    values: Mapping[str, MessageAttributeValue] | None, path: str
) -> dict[str, Attribute] | None:
    if not values:
        return None
    return {name: _attribute(name, value, path) for name, value in values.items()}


def _attribute(name: str, value: MessageAttributeValue, path: str) -> Attribute:
    _check_name(name)
    data_type = value.data_type
    if data_type is None:
        raise null_value(f"{path}messageAttributes.{name}.member.dataType")
    match = _TYPE.match(data_type)
    if match is None:
        raise _bad(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    is_binary = match[1] == "Binary"
    content: str | bytes | None = value.binary_value if is_binary else value.string_value
    if content is None and (value.binary_value is not None or value.string_value is not None):
        field = "Binary" if is_binary else "String"
        text = f"The message attribute '{name}' with type '{cut(data_type)}' must use field"
        raise _bad(f"{text} '{field}'.")
    if not content:
        raise _bad(
            f"The message attribute '{name}' must contain non-empty message attribute value for "
            f"message attribute type '{cut(data_type)}'."
        )
    if isinstance(content, bytes):
        return Attribute(data_type, content)
    if match[1] == "Number" and not is_number(content):
        raise _bad(f"Could not cast message attribute '{name}' value to number.")
    return Attribute(data_type, content.encode(errors="replace"))


def _check_name(name: str) -> None:
    if not name:
        raise _bad("Length of message attribute name must be greater than 0 bytes.")
    if name.startswith(RESERVED_PREFIX):
        raise _bad(f"Invalid message attribute name starting with '{RESERVED_PREFIX}' was found.")
    if len(name) > _NAME_BYTES_MAX:
        raise _bad("Length of message attribute name must be less than 256 bytes.")
    for end, char in (("starting", name[0]), ("ending", name[-1])):
        if char == ".":
            raise _bad(f"Invalid message attribute name {end} with character '.' was found.")
    wrong = _NOT_IN_NAMES.search(name)
    if wrong is None:
        return
    if wrong[0] == "..":
        raise _bad("Message attribute name can not have successive '.' character.")
    raise _bad(
        f"Invalid non-alphanumeric character '#x{ord(wrong[0]):X}' was found in the message "
        "attribute name. Can only include alphanumeric characters, hyphens, underscores, or dots."
    )


def _bad(text: str) -> Fault:
    return fault("ParameterValueInvalid", text)


# ── Messages with a text for each protocol ───────────────────────────────────────────────────

_PROTOCOLS = (
    "default http https email email-json sms sqs application lambda firehose ADM APNS APNS_SANDBOX"
    " APNS_VOIP APNS_VOIP_SANDBOX MACOS MACOS_SANDBOX BAIDU GCM MPNS WNS"
)
_FIELDS: Mapping[str, str] = {name: name.replace("-", "_") for name in _PROTOCOLS.split()}
# The decoder skips unknown members without building values, however many there are.
_decode_document = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Document",
        [(field, msgspec.Raw, msgspec.Raw()) for field in _FIELDS.values()],
        rename={field: name for name, field in _FIELDS.items()},
    )
).decode
_decode_text = msgspec.json.Decoder(str).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def texts_of(document: bytes) -> dict[str, str]:
    """Return the texts by protocol, including ``default``, of a message with MessageStructure=json.
    Members that are not strings have no effect. Of a member that occurs twice, the last counts."""
    try:
        members = _decode_document(document)
        raws = {name: bytes(getattr(members, field)) for name, field in _FIELDS.items()}
        texts = {name: _decode_text(raw) for name, raw in raws.items() if raw[:1] == b'"'}
    except _UNREADABLE:
        raise invalid("Message Structure - JSON message body failed to parse") from None
    if "default" not in texts:
        raise invalid("Message Structure - No default entry in JSON message body")
    return texts
