"""Typed requests and replies of the 23 SQS operations, for both the JSON and the query protocol.

``wire_name`` derives the AWS names of fields. A name is set explicitly where AWS breaks its own
rule (``tags`` of CreateQueue, ``queueUrls`` of one reply). A test compares all names with the AWS
SDK.

Every request field is optional, and null means absent. The actions check required fields, because
each action has its own errors. Requests are not frozen, because the frontend sets ``queue_url`` of
a request posted to a queue's own path. In replies, a field that is None is left out."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import msgspec

from penstock.model.limits import JSON_ENTRIES_MAX

FEW = msgspec.Meta(max_length=JSON_ENTRIES_MAX)

if TYPE_CHECKING:
    TextMap = dict[str, str]
else:
    # Queue attributes are strings, but hand-written clients send 30 or true. The decoder accepts
    # those and __post_init__ turns them into text, so that readers see only str.
    TextMap = Annotated[dict[str, str | int | float | bool], FEW]

_ACRONYMS = {"md5": "MD5", "aws": "AWS"}


def wire_name(field: str) -> str:
    """Return the AWS name of a field, such as ``MD5OfMessageBody`` for ``md5_of_message_body``."""
    return "".join(_ACRONYMS.get(word, word.capitalize()) for word in field.split("_"))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _as_text(attributes: TextMap | None) -> TextMap | None:
    if attributes is None:
        return None
    return {name: _text(value) for name, value in attributes.items()}


class Shape(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, rename=wire_name):
    """The base class of requests and replies, which the garbage collector need not track."""

    # In the query protocol of SQS, the elements of a list repeat the name of the list. In that of
    # SNS, a list or map has a name of its own that contains its elements.
    is_flattened: ClassVar[bool] = True


class Request(Shape): ...


class QueueRequest(Request):
    queue_url: str | None = None


class Reply(Shape): ...


# ── Parts of requests and replies ────────────────────────────────────────────────────────────


class MessageAttributeValue(Shape):
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: Annotated[list[str], FEW] | None = None
    binary_list_values: Annotated[list[bytes], FEW] | None = None
    data_type: str | None = None


class SendMessageBatchRequestEntry(Shape):
    id: str | None = None
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: Annotated[dict[str, MessageAttributeValue], FEW] | None = None
    message_system_attributes: Annotated[dict[str, MessageAttributeValue], FEW] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class DeleteMessageBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None


class ChangeMessageVisibilityBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class SendMessageBatchResultEntry(Shape):
    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class DeleteMessageBatchResultEntry(Shape):
    id: str


class ChangeMessageVisibilityBatchResultEntry(Shape):
    id: str


class BatchResultErrorEntry(Shape):
    """One rejected entry of a batch. ``code`` is the query protocol's code, even in JSON."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class ReceivedMessage(Shape):
    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None


class CallerIdentity(Shape):
    """The reply to GetCallerIdentity, an STS action that SQS clients and their tests send to the
    same endpoint to learn their account."""

    arn: str
    user_id: str
    account: str


class MessageMoveTaskEntry(Shape):
    task_handle: str | None = None
    status: str | None = None
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


class SendMessageRequest(QueueRequest):
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: Annotated[dict[str, MessageAttributeValue], FEW] | None = None
    message_system_attributes: Annotated[dict[str, MessageAttributeValue], FEW] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageReply(Reply):
    md5_of_message_body: str | None = None
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str | None = None
    sequence_number: str | None = None


class SendMessageBatchRequest(QueueRequest):
    entries: Annotated[list[SendMessageBatchRequestEntry], FEW] | None = None


class SendMessageBatchReply(Reply):
    successful: list[SendMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ReceiveMessageRequest(QueueRequest):
    attribute_names: Annotated[list[str], FEW] | None = None
    message_system_attribute_names: Annotated[list[str], FEW] | None = None
    message_attribute_names: Annotated[list[str], FEW] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class ReceiveMessageReply(Reply):
    messages: list[ReceivedMessage] | None = None


class DeleteMessageRequest(QueueRequest):
    receipt_handle: str | None = None


class DeleteMessageBatchRequest(QueueRequest):
    entries: Annotated[list[DeleteMessageBatchRequestEntry], FEW] | None = None


class DeleteMessageBatchReply(Reply):
    successful: list[DeleteMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ChangeMessageVisibilityRequest(QueueRequest):
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatchRequest(QueueRequest):
    entries: Annotated[list[ChangeMessageVisibilityBatchRequestEntry], FEW] | None = None


class ChangeMessageVisibilityBatchReply(Reply):
    successful: list[ChangeMessageVisibilityBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


# ── Queues ───────────────────────────────────────────────────────────────────────────────────


class CreateQueueRequest(Request):
    queue_name: str | None = None
    attributes: TextMap | None = None
    # The action rejects null as the value of a tag, with the error text of SQS.
    tags: Annotated[dict[str, str | None], FEW] | None = msgspec.field(default=None, name="tags")

    def __post_init__(self) -> None:
        self.attributes = _as_text(self.attributes)


class CreateQueueReply(Reply):
    queue_url: str | None = None


class DeleteQueueRequest(QueueRequest): ...


class GetQueueUrlRequest(Request):
    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None


class GetQueueUrlReply(Reply):
    queue_url: str | None = None


class ListQueuesRequest(Request):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class ListQueuesReply(Reply):
    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributesRequest(QueueRequest):
    attribute_names: Annotated[list[str], FEW] | None = None


class GetQueueAttributesReply(Reply):
    attributes: dict[str, str] | None = None


class SetQueueAttributesRequest(QueueRequest):
    attributes: TextMap | None = None

    def __post_init__(self) -> None:
        self.attributes = _as_text(self.attributes)


class PurgeQueueRequest(QueueRequest): ...


class AddPermissionRequest(QueueRequest):
    label: str | None = None
    aws_account_ids: Annotated[list[str], FEW] | None = None
    actions: Annotated[list[str], FEW] | None = None


class RemovePermissionRequest(QueueRequest):
    label: str | None = None


class TagQueueRequest(QueueRequest):
    tags: Annotated[dict[str, str | None], FEW] | None = None


class UntagQueueRequest(QueueRequest):
    tag_keys: Annotated[list[str], FEW] | None = None


class ListQueueTagsRequest(QueueRequest): ...


class ListQueueTagsReply(Reply):
    tags: dict[str, str] | None = None


# ── Dead letters ─────────────────────────────────────────────────────────────────────────────


class ListDeadLetterSourceQueuesRequest(QueueRequest):
    next_token: str | None = None
    max_results: int | None = None


class ListDeadLetterSourceQueuesReply(Reply):
    queue_urls: list[str] | None = msgspec.field(default=None, name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTaskRequest(Request):
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class StartMessageMoveTaskReply(Reply):
    task_handle: str | None = None


class CancelMessageMoveTaskRequest(Request):
    task_handle: str | None = None


class CancelMessageMoveTaskReply(Reply):
    approximate_number_of_messages_moved: int | None = None


class ListMessageMoveTasksRequest(Request):
    source_arn: str | None = None
    max_results: int | None = None


class ListMessageMoveTasksReply(Reply):
    results: list[MessageMoveTaskEntry] | None = None


# ── The operations ───────────────────────────────────────────────────────────────────────────


S = TypeVar("S", bound=Shape)


class Operation(msgspec.Struct, frozen=True):
    name: str
    request: type[Request]
    reply: type[Reply] | None = None


def operations(request: type[Request], reply: type[Reply]) -> Mapping[str, Operation]:
    """Return the operations of a service by name. Every subclass without subclasses is the request
    or the reply of the operation in its name."""
    replies = {each.__name__.removesuffix("Reply"): each for each in _leaves(reply)}
    named = {each.__name__.removesuffix("Request"): each for each in _leaves(request)}
    return MappingProxyType(
        {name: Operation(name, named[name], replies.get(name)) for name in sorted(named)}
    )


def _leaves(base: type[S]) -> Iterator[type[S]]:
    for each in base.__subclasses__():
        if each.__subclasses__():
            yield from _leaves(each)
        else:
            yield each


OPERATIONS: Mapping[str, Operation] = operations(Request, Reply)
