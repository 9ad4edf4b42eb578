"""Topics and partitions as Kafka requests name them, and why one of them cannot be served.

Kafka's names have no owner: they are looked up in the account that the context is of. A queue is a
topic of the same name. From some version of each API on, a topic is named by its id alone; an id
belongs to one incarnation, so it cannot reach a topic that was made anew, and an id of another
account is that of no topic.

Whether the caller may do with a topic what it asks is settled before whether there is such a
topic, except where it knows the topic's id."""

from bisect import insort

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.offsets_view import is_offsets_view, offsets_view
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.model.errors import OffsetOutOfRange, PenstockError, ProducerRefused
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode, code_of

NO_EPOCH = -1  # a client that does not care which leader answers


def find_name(context: KafkaContext, name: str) -> Topic | None:
    topic = context.catalog.find(context.account, context.config.region, name)
    return offsets_view(context) if topic is None and name == OFFSETS_TOPIC else topic


def find_id(context: KafkaContext, topic_id: bytes) -> Topic | None:
    topic = context.catalog.find_id(topic_id.hex())
    if topic is None:
        view = offsets_view(context)
        return view if view is not None and id_of(view) == topic_id else None
    if topic.account != context.account or topic.region != context.config.region:
        return None
    return topic


def topics_shown(context: KafkaContext) -> list[Topic]:
    """All topics of the context's tenant by name, the view of its committed offsets included."""
    topics = list(context.catalog.topics(context.account, context.config.region))
    view = find_name(context, OFFSETS_TOPIC)
    if view is not None and is_offsets_view(view):
        insort(topics, view, key=lambda topic: topic.name)
    return topics


def locate_name(
    context: KafkaContext, call: KafkaCall, operation: Operation, name: str
) -> Topic | ErrorCode:
    """The topic, or what to answer for each of its partitions."""
    topic = find_name(context, name)
    if not on_topic(context, call, operation, name, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def locate_id(
    context: KafkaContext, call: KafkaCall, operation: Operation, topic_id: bytes
) -> Topic | ErrorCode:
    topic = find_id(context, topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not on_topic(context, call, operation, topic.name, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic


def has_partition(topic: Topic, index: int) -> bool:
    return 0 <= index < topic.partition_count


def id_of(topic: Topic) -> bytes:
    return bytes.fromhex(topic.topic_id)


def is_of_node(topic: Topic) -> bool:
    """Kept by the node for itself: read by whoever likes to, written by nobody else. A queue's
    name may begin as it likes."""
    return is_internal(topic.name) and not topic.is_queue


def epoch_refusal(asked: int, current: int) -> ErrorCode:
    """What a client that believes in epoch ``asked`` is told, NONE if it is right."""
    if asked in (NO_EPOCH, current):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def code_for(error: PenstockError) -> ErrorCode:
    """For what a partition's calls raise: some of it carries a code, or has one only here."""
    if isinstance(error, OffsetOutOfRange):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    code = ErrorCode(error.code) if isinstance(error, ProducerRefused) else code_of(error)
    # Producers and consumers expect to be slowed down, not refused: of the latter code librdkafka
    # makes a record that is lost for good. This one they all answer by asking again.
    return ErrorCode.REQUEST_TIMED_OUT if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED else code
