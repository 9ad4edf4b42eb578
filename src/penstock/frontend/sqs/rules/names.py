"""Queue URLs, ids and sequence numbers in requests and replies.

The host of a queue URL is not used to find the queue, because proxies and containers give this node
names that it does not know. Account and name come from the path; the region comes from the
signature, else from the URL, else from the settings.

A sequence number has 17 digits for the offset in the partition, then 3 for the partition. A message
group has one partition, so its numbers rise; between groups they have no order, as in SQS."""

import re

from penstock.frontend.sqs.call import Call
from penstock.frontend.sqs.context import Context
from penstock.model.errors import TopicNotFound
from penstock.model.names import SHARE_MARK
from penstock.model.topic import Topic
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing

# Letters, digits and ASCII punctuation: every printable character but the space.
_ID = re.compile(r"[!-~]{1,128}\Z")


def topic_of(context: Context, call: Call, queue_url: str | None) -> Topic:
    if not queue_url:
        raise missing("QueueUrl")
    address = queue_urls.parse(queue_url)
    region = call.region if call.scope is not None else address.region or call.region
    topic = context.catalog.find(address.account or call.account, region, address.name)
    if topic is None:
        raise TopicNotFound(address.name)
    return topic


def read_only(topic: Topic) -> Fault:
    source, _, _ = topic.name.partition(SHARE_MARK)
    text = f"{topic.name} is a read-only share; send to {source} instead."
    return fault("UnsupportedOperation", text)


def url_of(context: Context, call: Call, topic: Topic) -> str:
    """Return the URL with scheme and host as the client reached us, unless the settings have an
    external URL: some clients connect to the URL that they are given."""
    base_url = context.config.external_url
    if base_url is None:
        scheme = "https" if call.http.is_tls else "http"
        base_url = f"{scheme}://{call.http.headers.get('host', 'localhost')}"
    return queue_urls.build(base_url, account=topic.account, name=topic.name)


def sequence_number(partition: int, offset: int) -> str:
    assert partition < 1_000, "three digits hold the partition"
    return f"{offset:017d}{partition:03d}"


def check_id(text: str, parameter: str) -> str:
    if _ID.match(text) is None:
        raise invalid_value(
            text,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. "
            "1 to 128 in length.",
        )
    return text
