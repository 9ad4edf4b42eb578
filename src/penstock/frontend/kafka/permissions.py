"""Decides whether a caller may perform a Kafka operation on a resource. Examples in policies:

    kafka:Read, kafka:Write …   on   arn:aws:sqs:<region>:<account>:<topic>
                                     arn:penstock:kafka:<region>:<account>:group/<id>
                                     arn:penstock:kafka:<region>:<account>:txn/<id>
                                     arn:penstock:kafka:<region>:<account>:cluster

Besides policies, the access rules of the tenant apply (``model/acls.py``), except to operators. A
denial by a policy or a rule wins. A queue may also have a policy of its own. As in Kafka, a caller
who may read, write, delete or alter a resource may also describe it, unless that is explicitly
denied, and a caller who may alter configs may see them. Internal topics have data of all tenants,
so they are for operators only, whatever policies allow.

With authentication off, callers are trusted and may do everything."""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.access.conditions import MalformedPolicy
from penstock.access.evaluation import Decision, Kind, compile_policy
from penstock.frontend.kafka.context import KafkaCall
from penstock.model import acls
from penstock.model.acls import CLUSTER_NAME, IMPLYING, Permission, ResourceType, host_of
from penstock.model.names import OFFSETS_TOPIC, is_for_operators, queue_arn
from penstock.model.topic import Topic

Operation = acls.Operation
ACTIONS: Final[Mapping[Operation, str]] = {
    each: "kafka:" + "".join(word.capitalize() for word in each.name.split("_"))
    for each in Operation
}
UNASKED: Final = -(2**31)  # in replies to clients that did not request their operations


def on_topic(call: KafkaCall, operation: Operation, name: str, topic: Topic | None = None) -> bool:
    """Return whether the caller may perform the operation. ``topic``, if known, saves a lookup."""
    if call.caller.is_trusted:
        return True
    if topic is None:
        topic = call.context.catalog.find(call.context.account, call.context.config.region, name)
    # The view of committed offsets (``__consumer_offsets``) has only data of the tenant.
    is_for_operators_only = (
        is_for_operators(name) and name != OFFSETS_TOPIC and (topic is None or not topic.is_queue)
    )
    if is_for_operators_only and not call.caller.is_operator:
        return False
    if topic is None:
        context, policy = call.context, None
        arn = queue_arn(context.account, context.config.region, name)
    else:
        arn, policy = topic.arn, topic.settings.policy
    return _may(call, operation, ResourceType.TOPIC, name, arn, policy)


def on_group(call: KafkaCall, operation: Operation, group_id: str) -> bool:
    return _on(call, operation, ResourceType.GROUP, group_id)


def on_transaction(call: KafkaCall, operation: Operation, transactional_id: str) -> bool:
    return _on(call, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def on_cluster(call: KafkaCall, operation: Operation) -> bool:
    return _on(call, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _on(call: KafkaCall, operation: Operation, kind: ResourceType, name: str) -> bool:
    if call.caller.is_trusted:
        return True
    arn = arn_of(call.context.account, call.context.config.region, kind, name)
    return _may(call, operation, kind, name, arn)


def reaches_topic(call: KafkaCall, operation: Operation, topic: Topic) -> bool:
    """Return whether a caller with this right on the cluster also has it on the topic."""
    return topic.settings.policy is None or on_topic(call, operation, topic.name, topic)


def may_write_somewhere(call: KafkaCall) -> bool:
    """Return whether the caller may write to at least one topic, existing or not, and so may get a
    producer id. A denial for a single topic is noticed only when the producer writes to it."""
    if on_cluster(call, Operation.IDEMPOTENT_WRITE):
        return True
    user = call.context.identities.user(call.account, call.caller.user)
    if user is None:
        return False
    decided = _by_rules(call, Operation.WRITE, ResourceType.TOPIC, None)
    if decided is not None:
        return decided is Permission.ALLOW
    action = ACTIONS[Operation.WRITE].lower()
    for text in user.policies.values():
        try:
            statements = compile_policy(text, Kind.IDENTITY).statements
        except MalformedPolicy:
            return False  # a malformed policy may deny anything
        if any(each.is_allow and each.actions.match(action) for each in statements):
            return True
    topics = call.context.catalog.topics(call.context.account, call.context.config.region)
    return any(
        topic.settings.policy is not None and on_topic(call, Operation.WRITE, topic.name, topic)
        for topic in topics
    )


def _may(
    call: KafkaCall,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    arn: str,
    policy: str | None = None,
) -> bool:
    """Return whether an access rule or a policy allows the operation and neither denies it."""
    decided = _by_rules(call, operation, resource_type, name)
    if decided is Permission.DENY:
        return False
    decision = _by_policies(call, operation, arn, policy)
    if decision.is_allowed or decision.is_explicit:
        return decision.is_allowed
    return decided is Permission.ALLOW or any(
        _by_policies(call, each, arn, policy).is_allowed for each in IMPLYING.get(operation, ())
    )


def may_by_rules(call: KafkaCall, operation: Operation, kind: ResourceType, name: str) -> bool:
    """Return whether the caller is an operator or an access rule allows the operation."""
    is_allowed = _by_rules(call, operation, kind, name) is Permission.ALLOW
    return call.caller.is_operator or is_allowed


def _by_rules(
    call: KafkaCall, operation: Operation, resource_type: ResourceType, name: str | None
) -> Permission | None:
    """Return what access rules decide about the resource or, if ``name`` is None, about at least
    one resource of the type. Returns None if no rule applies. Rules never apply to operators."""
    rules = None if call.caller.is_operator else call.context.identities.acls(call.context.account)
    if rules is None:
        return None
    principal, host = f"User:{call.caller.user}", host_of(call.connection.peer)
    if name is None:
        return rules.decide_somewhere(operation, resource_type, principal=principal, host=host)
    return rules.decide(operation, resource_type, name=name, principal=principal, host=host)


def _by_policies(call: KafkaCall, operation: Operation, arn: str, policy: str | None) -> Decision:
    return call.context.decisions.decide(
        call.caller,
        ACTIONS[operation],
        arn=arn,
        owner=call.context.account,
        policy=policy,
        circumstances=call.circumstances,
    )


def arn_of(account: str, region: str, kind: int, name: str) -> str:
    if kind == ResourceType.TOPIC:
        return queue_arn(account, region, name)
    path = "cluster"
    if kind != ResourceType.CLUSTER:
        path = f"{'group' if kind == ResourceType.GROUP else 'txn'}/{name}"
    return f"arn:penstock:kafka:{region}:{account}:{path}"


def bits(operations: Iterable[Operation]) -> int:
    """Return the bit field for a set of operations, as replies contain it."""
    return sum(1 << operation for operation in operations)


def _operations(names: str) -> tuple[Operation, ...]:
    return tuple(acls.Operation[name] for name in names.split())


OF_TOPICS: Final = _operations(
    "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"
)
OF_CLUSTERS: Final = _operations(
    "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE"
)
OF_GROUPS: Final = _operations("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS")


def topic_operations(call: KafkaCall, name: str, topic: Topic | None) -> int:
    return bits(each for each in OF_TOPICS if on_topic(call, each, name, topic))


def group_operations(call: KafkaCall, group_id: str) -> int:
    return bits(each for each in OF_GROUPS if on_group(call, each, group_id))


def cluster_operations(call: KafkaCall) -> int:
    """Return the operations allowed on the cluster, or none if the caller may not describe it."""
    may_describe = on_cluster(call, Operation.DESCRIBE)
    return bits(each for each in OF_CLUSTERS if may_describe and on_cluster(call, each))
