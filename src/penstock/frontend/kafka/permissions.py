"""May the caller do that? Kafka's operations on its four kinds of things, as policies name them.

    kafka:Read, kafka:Write …   on   arn:aws:sqs:<region>:<account>:<topic>
                                     arn:penstock:kafka:<region>:<account>:group/<id>
                                     arn:penstock:kafka:<region>:<account>:txn/<id>
                                     arn:penstock:kafka:<region>:<account>:cluster

Actions ask here and put the answer where their API has a place for it. A topic that is a queue has
a policy of its own, which counts as well. As with Kafka, who may read, write, delete or alter
something may describe it, unless that is denied by name; and who may alter configs may see them.

Topics of the node's own hold what belongs to all accounts, so they are for operators, whatever a
policy says of their names; and so are those that operators' own programs write.

A caller who is believed (authentication is off) may do everything, and nothing is looked up for it.
Which access rules there are, and what becomes of a rule that changes, is ``frontend.decisions``'.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.model.names import OFFSETS_TOPIC, is_for_operators, queue_arn
from penstock.model.topic import Topic
from penstock.wire.aws.access import Kind, MalformedPolicy, compile_policy


class Operation(IntEnum):
    """As ACLs number them."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


ACTIONS: Final[Mapping[Operation, str]] = MappingProxyType(
    {
        each: "kafka:" + "".join(word.capitalize() for word in each.name.split("_"))
        for each in Operation
    }
)
_IMPLYING: Final[Mapping[Operation, tuple[Operation, ...]]] = MappingProxyType(
    {
        Operation.DESCRIBE: (
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        ),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
)


# ── One thing ────────────────────────────────────────────────────────────────────────────────


def on_topic(
    context: KafkaContext,
    call: KafkaCall,
    operation: Operation,
    name: str,
    topic: Topic | None = None,
) -> bool:
    """``topic``: the one of that name, where it is at hand; it need not be there to be refused."""
    if call.caller.is_trusted:
        return True
    if topic is None:
        topic = context.catalog.find(context.account, context.config.region, name)
    # The view of committed offsets has only what is the tenant's.
    is_theirs = (
        is_for_operators(name) and name != OFFSETS_TOPIC and (topic is None or not topic.is_queue)
    )
    if is_theirs and not call.caller.is_operator:
        return False
    if topic is None:
        return _may(context, call, operation, topic_arn(context, name), None)
    return _may(context, call, operation, topic.arn, topic.settings.policy)


def on_group(context: KafkaContext, call: KafkaCall, operation: Operation, group_id: str) -> bool:
    if call.caller.is_trusted:
        return True
    return _may(context, call, operation, group_arn(context, group_id), None)


def on_transaction(
    context: KafkaContext, call: KafkaCall, operation: Operation, transactional_id: str
) -> bool:
    if call.caller.is_trusted:
        return True
    return _may(context, call, operation, transaction_arn(context, transactional_id), None)


def on_cluster(context: KafkaContext, call: KafkaCall, operation: Operation) -> bool:
    if call.caller.is_trusted:
        return True
    return _may(context, call, operation, cluster_arn(context), None)


def reaches_topic(
    context: KafkaContext, call: KafkaCall, operation: Operation, topic: Topic
) -> bool:
    """Whether a right on the whole cluster holds for this topic: a topic with a policy of its own
    must allow the operation as well."""
    return topic.settings.policy is None or on_topic(context, call, operation, topic.name, topic)


def may_write_somewhere(context: KafkaContext, call: KafkaCall) -> bool:
    """Whether the caller may write to any topic, there already or not: then it may have a number
    to write with. By what its policies allow; what they deny shows when it writes."""
    if on_cluster(context, call, Operation.IDEMPOTENT_WRITE):
        return True
    user = context.identities.user(call.account, call.caller.user)
    if user is None:
        return False
    action = ACTIONS[Operation.WRITE].lower()
    for text in user.policies.values():
        try:
            statements = compile_policy(text, Kind.IDENTITY).statements
        except MalformedPolicy:
            return False  # what it meant to forbid is not known
        if any(each.is_allow and each.actions.match(action) for each in statements):
            return True
    topics = context.catalog.topics(context.account, context.config.region)
    return any(
        topic.settings.policy is not None
        and on_topic(context, call, Operation.WRITE, topic.name, topic)
        for topic in topics
    )


def _may(
    context: KafkaContext, call: KafkaCall, operation: Operation, arn: str, policy: str | None
) -> bool:
    decision = context.decisions.decide(
        call.caller,
        ACTIONS[operation],
        arn=arn,
        owner=context.account,
        policy=policy,
        circumstances=lambda: call.circumstances(context.clock),
    )
    if decision.is_allowed or decision.is_explicit:
        return decision.is_allowed
    return any(_may(context, call, each, arn, policy) for each in _IMPLYING.get(operation, ()))


# ── What policies call it ────────────────────────────────────────────────────────────────────


def topic_arn(context: KafkaContext, name: str) -> str:
    return queue_arn(context.account, context.config.region, name)


def group_arn(context: KafkaContext, group_id: str) -> str:
    return f"{_prefix(context)}group/{group_id}"


def transaction_arn(context: KafkaContext, transactional_id: str) -> str:
    return f"{_prefix(context)}txn/{transactional_id}"


def cluster_arn(context: KafkaContext) -> str:
    return f"{_prefix(context)}cluster"


def _prefix(context: KafkaContext) -> str:
    return f"arn:penstock:kafka:{context.config.region}:{context.account}:"


# ── The bit sets that some answers show when asked ───────────────────────────────────────────


def bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


UNASKED: Final = -(2**31)  # the field's own word for "not asked for"
NOTHING: Final = 0
OF_TOPICS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
OF_CLUSTERS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
OF_GROUPS: Final = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
TOPIC_OPERATIONS: Final = bits(OF_TOPICS)
CLUSTER_OPERATIONS: Final = bits(OF_CLUSTERS)
GROUP_OPERATIONS: Final = bits(OF_GROUPS)


def topic_operations(context: KafkaContext, call: KafkaCall, topic: Topic) -> int:
    if call.caller.is_trusted:
        return TOPIC_OPERATIONS
    return bits(each for each in OF_TOPICS if on_topic(context, call, each, topic.name, topic))


def group_operations(context: KafkaContext, call: KafkaCall, group_id: str) -> int:
    if call.caller.is_trusted:
        return GROUP_OPERATIONS
    return bits(each for each in OF_GROUPS if on_group(context, call, each, group_id))


def cluster_operations(context: KafkaContext, call: KafkaCall) -> int:
    """For who may not describe the cluster there is nothing to tell, and that is no error."""
    if call.caller.is_trusted:
        return CLUSTER_OPERATIONS
    if not on_cluster(context, call, Operation.DESCRIBE):
        return NOTHING
    return bits(each for each in OF_CLUSTERS if on_cluster(context, call, each))
