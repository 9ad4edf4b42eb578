"""From what a client calls a queue to its topic, and from a topic to the URL clients get.

The host of a queue URL is never looked at to find a queue: clients behind proxies, in containers
and with copied configuration all name hosts this node has never heard of. Account and name come
from the path; the region comes from the signature, else from the URL, else from the settings."""

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.model.errors import TopicNotFound
from penstock.model.names import SHARE_MARK
from penstock.model.topic import Topic
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault, fault, missing


def topic_of(context: Context, call: Call, queue_url: str | None) -> Topic:
    """Two look-ups on the hot path: the URL's parts (remembered by wire) and the catalog."""
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
    return fault("UnsupportedOperation", f"{topic.name} is a way to read: send to {source}.")


def base_url_of(context: Context, call: Call) -> str:
    """Scheme and host as the client reached us, unless the settings know better: some clients
    dial the URL they are given."""
    if context.config.external_url is not None:
        return context.config.external_url
    scheme = "https" if call.request.is_tls else "http"
    return f"{scheme}://{call.request.headers.get('host', 'localhost')}"


def url_of(context: Context, call: Call, topic: Topic) -> str:
    return queue_urls.build(base_url_of(context, call), account=topic.account, name=topic.name)
