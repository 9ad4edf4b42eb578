"""Actions on the tags of SNS topics. Tags keep the order in which they were added."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.model.limits import TAGS_MAX
from penstock.model.topic import Topic
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.aws.sns.faults import duplicate_tags, fault, invalid, null_value

KEY_CHARS_MAX: Final = 128
VALUE_CHARS_MAX: Final = 256


def _tagged(call: Call, arn: str | None) -> Topic:
    address = arns.parse_tagged(arn, caller=call.account, region=call.region)
    topic = call.context.everything.find_sns(address.account, address.region, address.name)
    if topic is None:
        raise fault("ResourceNotFound")
    return topic


def read_tags(given: Sequence[shapes.Tag]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for place, tag in enumerate(given, 1):
        if tag.key is None or tag.value is None:
            member = "key" if tag.key is None else "value"
            raise null_value(f"tags.{place}.member.{member}")
        if tag.key in tags:
            raise duplicate_tags()
        if not 1 <= len(tag.key) <= KEY_CHARS_MAX or len(tag.value) > VALUE_CHARS_MAX:
            text = f"a key has 1 to {KEY_CHARS_MAX} characters, a value at most {VALUE_CHARS_MAX}"
            raise invalid("Tags", text)
        tags[tag.key] = tag.value
    if len(tags) > TAGS_MAX:
        raise fault("TagLimitExceeded")
    return tags


async def tag_resource(call: Call, request: shapes.TagResourceRequest) -> shapes.TagResourceReply:
    topic = _tagged(call, request.resource_arn)
    if request.tags is None:
        raise null_value("tags")
    tags = read_tags(request.tags)

    def tag(current: Topic) -> Topic:
        return _with_tags(current, {**_current_tags(current), **tags})

    tag(topic)
    await _change(call, topic, tag)
    return shapes.TagResourceReply()


async def untag_resource(
    call: Call, request: shapes.UntagResourceRequest
) -> shapes.UntagResourceReply:
    topic = _tagged(call, request.resource_arn)
    if request.tag_keys is None:
        raise null_value("tagKeys")
    keys = frozenset(request.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: text for key, text in _current_tags(current).items() if key not in keys}
        return _with_tags(current, kept)

    await _change(call, topic, untag)
    return shapes.UntagResourceReply()


async def list_tags(
    call: Call, request: shapes.ListTagsForResourceRequest
) -> shapes.ListTagsForResourceReply:
    tags = _current_tags(_tagged(call, request.resource_arn))
    shown = [shapes.Tag(key=key, value=value) for key, value in tags.items()]
    return shapes.ListTagsForResourceReply(tags=shown)


async def _change(call: Call, topic: Topic, change: Callable[[Topic], Topic]) -> None:
    await call.context.everything.change(topic.account, topic.region, topic.name, change)


def _current_tags(topic: Topic) -> Mapping[str, str]:
    assert topic.sns is not None
    return topic.sns.tags


def _with_tags(topic: Topic, tags: Mapping[str, str]) -> Topic:
    if len(tags) > TAGS_MAX:
        raise fault("TagLimitExceeded")
    assert topic.sns is not None
    return msgspec.structs.replace(topic, sns=msgspec.structs.replace(topic.sns, tags=dict(tags)))
