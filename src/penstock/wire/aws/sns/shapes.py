"""Typed requests and replies of the 21 SNS operations that this server has in full.

They follow the rules of ``wire/aws/shapes.py``: every request field is optional, the actions check
required fields, and ``wire_name`` derives the AWS names, which a test compares with the AWS SDK.

Lists and maps of replies are required: SNS clients expect their elements even if they are empty."""

from collections.abc import Mapping
from typing import ClassVar

from penstock.wire.aws.shapes import Operation, Reply, Request, Shape, operations


class Part(Shape):
    is_flattened: ClassVar[bool] = False


class SnsRequest(Request):
    is_flattened: ClassVar[bool] = False


class TopicRequest(SnsRequest):
    topic_arn: str | None = None


class SubscriptionRequest(SnsRequest):
    subscription_arn: str | None = None


class ResourceRequest(SnsRequest):
    resource_arn: str | None = None


class SnsReply(Reply):
    is_flattened: ClassVar[bool] = False


# ── Parts of requests and replies ────────────────────────────────────────────────────────────


class Tag(Part):
    key: str | None = None
    value: str | None = None


class Topic(Part):
    topic_arn: str


class Subscription(Part):
    subscription_arn: str
    owner: str
    protocol: str
    endpoint: str
    topic_arn: str


class MessageAttributeValue(Part):
    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None


class PublishBatchRequestEntry(Part):
    id: str | None = None
    message: str | None = None
    subject: str | None = None
    message_structure: str | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class PublishBatchResultEntry(Part):
    id: str
    message_id: str
    sequence_number: str | None = None


class BatchResultErrorEntry(Part):
    id: str
    code: str
    sender_fault: bool
    message: str | None = None


# ── Topics ───────────────────────────────────────────────────────────────────────────────────


class CreateTopicRequest(SnsRequest):
    name: str | None = None
    attributes: dict[str, str] | None = None
    tags: list[Tag] | None = None
    data_protection_policy: str | None = None


class CreateTopicReply(SnsReply):
    topic_arn: str


class DeleteTopicRequest(TopicRequest): ...


class ListTopicsRequest(SnsRequest):
    next_token: str | None = None


class ListTopicsReply(SnsReply):
    topics: list[Topic]
    next_token: str | None = None


class GetTopicAttributesRequest(TopicRequest): ...


class GetTopicAttributesReply(SnsReply):
    attributes: dict[str, str]


class SetTopicAttributesRequest(TopicRequest):
    attribute_name: str | None = None
    attribute_value: str | None = None


class AddPermissionRequest(TopicRequest):
    label: str | None = None
    aws_account_id: list[str] | None = None
    action_name: list[str] | None = None


class RemovePermissionRequest(TopicRequest):
    label: str | None = None


class PutDataProtectionPolicyRequest(ResourceRequest):
    data_protection_policy: str | None = None


class GetDataProtectionPolicyRequest(ResourceRequest): ...


class GetDataProtectionPolicyReply(SnsReply):
    data_protection_policy: str | None = None


class TagResourceRequest(ResourceRequest):
    tags: list[Tag] | None = None


class TagResourceReply(SnsReply): ...


class UntagResourceRequest(ResourceRequest):
    tag_keys: list[str] | None = None


class UntagResourceReply(SnsReply): ...


class ListTagsForResourceRequest(ResourceRequest): ...


class ListTagsForResourceReply(SnsReply):
    tags: list[Tag]


# ── Subscriptions ────────────────────────────────────────────────────────────────────────────


class SubscribeRequest(TopicRequest):
    protocol: str | None = None
    endpoint: str | None = None
    attributes: dict[str, str] | None = None
    return_subscription_arn: bool | None = None


class SubscribeReply(SnsReply):
    subscription_arn: str


class ConfirmSubscriptionRequest(TopicRequest):
    token: str | None = None
    authenticate_on_unsubscribe: str | None = None


class ConfirmSubscriptionReply(SnsReply):
    subscription_arn: str


class UnsubscribeRequest(SubscriptionRequest): ...


class ListSubscriptionsRequest(SnsRequest):
    next_token: str | None = None


class ListSubscriptionsReply(SnsReply):
    subscriptions: list[Subscription]
    next_token: str | None = None


class ListSubscriptionsByTopicRequest(TopicRequest):
    next_token: str | None = None


class ListSubscriptionsByTopicReply(SnsReply):
    subscriptions: list[Subscription]
    next_token: str | None = None


class GetSubscriptionAttributesRequest(SubscriptionRequest): ...


class GetSubscriptionAttributesReply(SnsReply):
    attributes: dict[str, str]


class SetSubscriptionAttributesRequest(SubscriptionRequest):
    attribute_name: str | None = None
    attribute_value: str | None = None


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


class PublishRequest(TopicRequest):
    target_arn: str | None = None
    phone_number: str | None = None
    message: str | None = None
    subject: str | None = None
    message_structure: str | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class PublishReply(SnsReply):
    message_id: str
    sequence_number: str | None = None


class PublishBatchRequest(TopicRequest):
    publish_batch_request_entries: list[PublishBatchRequestEntry] | None = None


class PublishBatchReply(SnsReply):
    successful: list[PublishBatchResultEntry]
    failed: list[BatchResultErrorEntry]


OPERATIONS: Mapping[str, Operation] = operations(SnsRequest, SnsReply)
