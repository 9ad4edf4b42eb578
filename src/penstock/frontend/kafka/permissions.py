"""May the caller do that? Kafka's operations on its kinds of resources, as policies name them.

    kafka:Read, kafka:Write …   on   arn:aws:sqs:<region>:<account>:<topic>
                                     arn:penstock:kafka:<region>:<account>:group/<id>
                                     arn:penstock:kafka:<region>:<account>:txn/<id>
                                     arn:penstock:kafka:<region>:<account>:cluster

Actions ask here and put the answer where their API has a place for it. Access rules of the tenant
(``model/acls.py``) count beside the policies, except for operators: a deny of either wins. A topic
that is a queue has a policy of its own, which counts as well. As with Kafka, who may read, write,
delete or alter something may describe it, unless that is denied by name; and who may alter configs
may see them.

Topics of the node's own hold what belongs to all accounts, so they are for operators, whatever a
policy says of their names; and so are those that operators' own programs write.

A caller who is believed (authentication is off) may do everything, and nothing is looked up for it.
How policies are weighed, and what becomes of one that changes, is ``frontend.decisions``'.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.model import acls
from penstock.model.acls import CLUSTER_NAME, IMPLYING, Permission, ResourceType, host_of
from penstock.model.identity import Caller
from penstock.model.names import OFFSETS_TOPIC, is_for_operators, queue_arn
from penstock.model.topic import Topic
from penstock.wire.aws.access import Decision, Kind, MalformedPolicy, compile_policy

Operation = acls.Operation
ACTIONS: Final[Mapping[Operation, str]] = MappingProxyType(
    {
        each: "kafka:" + "".join(word.capitalize() for word in each.name.split("_"))
        for each in Operation
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
        arn, policy = topic_arn(context, name), None
    else:
        arn, policy = topic.arn, topic.settings.policy
    return _may(context, call, operation, ResourceType.TOPIC, name, arn, policy)


def on_group(context: KafkaContext, call: KafkaCall, operation: Operation, group_id: str) -> bool:
    if call.caller.is_trusted:
        return True
    arn = group_arn(context, group_id)
    return _may(context, call, operation, ResourceType.GROUP, group_id, arn)


def on_transaction(
    context: KafkaContext, call: KafkaCall, operation: Operation, transactional_id: str
) -> bool:
    if call.caller.is_trusted:
        return True
    arn = transaction_arn(context, transactional_id)
    return _may(context, call, operation, ResourceType.TRANSACTIONAL_ID, transactional_id, arn)


def on_cluster(context: KafkaContext, call: KafkaCall, operation: Operation) -> bool:
    if call.caller.is_trusted:
        return True
    arn = cluster_arn(context)
    return _may(context, call, operation, ResourceType.CLUSTER, CLUSTER_NAME, arn)


def reaches_topic(
    context: KafkaContext, call: KafkaCall, operation: Operation, topic: Topic
) -> bool:
    """Whether a right on the whole cluster holds for this topic: a topic with a policy of its own
    must allow the operation as well."""
    return topic.settings.policy is None or on_topic(context, call, operation, topic.name, topic)


def may_write_somewhere(context: KafkaContext, call: KafkaCall) -> bool:
    """Whether the caller may write to any topic, there already or not: then it may have a number
    to write with. By what rules and policies allow; what they deny shows when it writes."""
    if on_cluster(context, call, Operation.IDEMPOTENT_WRITE):
        return True
    user = context.identities.user(call.account, call.caller.user)
    if user is None:
        return False
    rules = _rules_for(context, call)
    if rules is not None:
        decided = rules.decide_somewhere(
            Operation.WRITE,
            ResourceType.TOPIC,
            principal=principal_of(call.caller),
            host=host_of(call.connection.peer),
        )
        if decided is not None:
            return decided is Permission.ALLOW
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
    context: KafkaContext,
    call: KafkaCall,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    arn: str,
    policy: str | None = None,
) -> bool:
    """A deny by a rule or a policy wins. Otherwise, an allow by either of them is enough."""
    decided = None
    rules = _rules_for(context, call)
    if rules is not None:
        decided = rules.decide(
            operation,
            resource_type,
            name=name,
            principal=principal_of(call.caller),
            host=host_of(call.connection.peer),
        )
        if decided is Permission.DENY:
            return False
    decision = _by_policies(context, call, operation, arn, policy)
    if decision.is_allowed or decision.is_explicit:
        return decision.is_allowed
    return decided is Permission.ALLOW or any(
        _by_policies(context, call, each, arn, policy).is_allowed
        for each in IMPLYING.get(operation, ())
    )


def may_by_rules(
    context: KafkaContext,
    call: KafkaCall,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    """Return whether the caller is an operator or an access rule allows the operation. Policies do
    not count."""
    if call.caller.is_operator:
        return True
    rules = context.identities.acls(context.account)
    if rules is None:
        return False
    principal, host = principal_of(call.caller), host_of(call.connection.peer)
    decided = rules.decide(operation, resource_type, name=name, principal=principal, host=host)
    return decided is Permission.ALLOW


def _rules_for(context: KafkaContext, call: KafkaCall) -> acls.AclIndex | None:
    """Return the rules that bind the caller; None if there are none. Rules do not bind operators,
    because users of the tenant make the rules."""
    return None if call.caller.is_operator else context.identities.acls(context.account)


def _by_policies(
    context: KafkaContext, call: KafkaCall, operation: Operation, arn: str, policy: str | None
) -> Decision:
    return context.decisions.decide(
        call.caller,
        ACTIONS[operation],
        arn=arn,
        owner=context.account,
        policy=policy,
        circumstances=lambda: call.circumstances(context.clock),
    )


def principal_of(caller: Caller) -> str:
    """Return the caller as access rules name it."""
    return f"User:{caller.user}"


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


def topic_operations(context: KafkaContext, call: KafkaCall, name: str, topic: Topic | None) -> int:
    """Return what the caller may do with a topic of this name, whether or not it exists."""
    if call.caller.is_trusted:
        return TOPIC_OPERATIONS
    return bits(each for each in OF_TOPICS if on_topic(context, call, each, name, topic))


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
