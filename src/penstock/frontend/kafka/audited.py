"""Which Kafka requests the audit trail is about, and what it says of them: log-ins, and whatever
changes topics, replicas, leaders, configs, groups, access rules or passwords. One entry for each
thing that a request names, with the code that it was answered. Passwords, salts and records never
get here.

Who only asked what would happen (``validate_only``) is not noted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from penstock.frontend.audit import AuditTrail
from penstock.frontend.audited import CANCELLED
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import cluster_arn, group_arn, topic_arn
from penstock.frontend.kafka.usage import DENIALS
from penstock.wire.facts.audit import (
    DENIED,
    FAILED,
    NAME_MAX,
    OK,
    UNKNOWN,
    AuditEntry,
    redacted,
)
from penstock.wire.kafka.faults import ErrorCode

# Entries of one request for what was not done; the rest is a number. What was done is bounded by
# what there is.
FAILURES_MAX: Final = 1_000

LOG_IN: Final = "kafka:LogIn"
TOPIC: Final = "topic"
GROUP: Final = "group"
CLUSTER: Final = "cluster"
_RESOURCE_TYPES: Final[Mapping[int, str]] = {2: TOPIC, 3: GROUP, 4: CLUSTER, 32: GROUP}


class Change(NamedTuple):
    action: str
    kind: str
    name: str
    code: int
    params: Mapping[str, object] = {}


Changes = Iterator[Change]


def _create_topics(asked: Any, reply: Any) -> Changes:
    wanted = {topic.name: topic for topic in asked.topics}
    for done in () if asked.validate_only else reply.topics:
        configs = {each.name: each.value for each in wanted[done.name].configs}
        params = {"partitions": done.num_partitions, "configs": configs}
        yield Change("kafka:CreateTopic", TOPIC, done.name, done.error_code, params)


def _create_internal_topics(asked: Any, codes: Any) -> Changes:
    """``codes``: name → code, of the topics that the request has created or failed to create."""
    for topic in asked:
        if topic.name in codes:
            params = {"partitions": topic.partition_count, "configs": dict(topic.configs)}
            yield Change("kafka:CreateTopic", TOPIC, topic.name, codes[topic.name], params)


def _delete_topics(_asked: Any, reply: Any) -> Changes:
    for done in reply.responses:
        params = {"topic_id": done.topic_id.hex()}
        yield Change("kafka:DeleteTopic", TOPIC, done.name or "", done.error_code, params)


def _delete_records(asked: Any, reply: Any) -> Changes:
    for wanted, done in zip(asked.topics, reply.topics, strict=False):
        before = {str(each.partition_index): each.offset for each in wanted.partitions}
        code = _first_code(done.partitions)
        yield Change("kafka:DeleteRecords", TOPIC, wanted.name, code, {"before": before})


def _create_acls(asked: Any, reply: Any) -> Changes:
    for wanted, done in zip(asked.creations, reply.results, strict=False):
        params = {
            "principal": wanted.principal,
            "host": wanted.host,
            "operation": wanted.operation,
            "permission": wanted.permission_type,
            "pattern": wanted.resource_pattern_type,
        }
        kind = _RESOURCE_TYPES.get(wanted.resource_type, CLUSTER)
        yield Change("kafka:CreateAcl", kind, wanted.resource_name, done.error_code, params)


def _delete_acls(asked: Any, reply: Any) -> Changes:
    for wanted, done in zip(asked.filters, reply.filter_results, strict=False):
        params = {
            "principal": wanted.principal_filter,
            "host": wanted.host_filter,
            "operation": wanted.operation,
            "permission": wanted.permission_type,
            "pattern": wanted.pattern_type_filter,
            "deleted": sum(not each.error_code for each in done.matching_acls),
        }
        kind = _RESOURCE_TYPES.get(wanted.resource_type_filter, CLUSTER)
        name = wanted.resource_name_filter or ""
        code = done.error_code or _first_code(done.matching_acls)
        yield Change("kafka:DeleteAcl", kind, name, code, params)


def _alter_configs(asked: Any, reply: Any) -> Changes:
    if asked.validate_only:
        return
    for wanted, done in zip(asked.resources, reply.responses, strict=False):
        configs = {each.name: "" if each.value is None else each.value for each in wanted.configs}
        kind = _RESOURCE_TYPES.get(wanted.resource_type, CLUSTER)
        params: dict[str, object] = {"configs": configs}
        if kind == CLUSTER:  # values may be secrets
            named = f"{wanted.resource_type}/{wanted.resource_name}"
            params = {"configs": list(configs), "resource": named}
        yield Change("kafka:AlterConfigs", kind, wanted.resource_name, done.error_code, params)


def _alter_quotas(asked: Any, reply: Any) -> Changes:
    if asked.validate_only:
        return
    codes = {
        frozenset((part.entity_type, part.entity_name) for part in done.entity): done.error_code
        for done in reply.entries
    }
    for wanted in asked.entries:
        parts = [(part.entity_type, part.entity_name) for part in wanted.entity]
        params = {
            "entity": {kind: "<default>" if name is None else name for kind, name in parts},
            "quotas": {op.key: "removed" if op.remove else op.value for op in wanted.ops},
        }
        code = codes.get(frozenset(parts), 0)
        yield Change("kafka:AlterClientQuotas", CLUSTER, "", code, params)


def _create_partitions(asked: Any, reply: Any) -> Changes:
    counts = {topic.name: topic.count for topic in asked.topics}
    for done in () if asked.validate_only else reply.results:
        params = {"partitions": counts.get(done.name)}
        yield Change("kafka:CreatePartitions", TOPIC, done.name, done.error_code, params)


def _delete_groups(_asked: Any, reply: Any) -> Changes:
    for done in reply.results:
        yield Change("kafka:DeleteGroup", GROUP, done.group_id, done.error_code)


def _delete_offsets(asked: Any, reply: Any) -> Changes:
    params = {"topics": [topic.name for topic in asked.topics]}
    yield Change("kafka:DeleteOffsets", GROUP, asked.group_id, reply.error_code, params)


def _share_offsets(action: str) -> Callable[[Any, Any], Changes]:
    def changes(asked: Any, reply: Any) -> Changes:
        params = {"topics": [topic.topic_name for topic in asked.topics]}
        yield Change(action, GROUP, asked.group_id, reply.error_code, params)

    return changes


def _reassignments(asked: Any, reply: Any) -> Changes:
    action = "kafka:AlterPartitionReassignments"
    if reply.error_code:
        yield Change(action, CLUSTER, "", reply.error_code)
    for wanted, done in zip(asked.topics, reply.responses, strict=False):
        places = {str(each.partition_index): _listed(each.replicas) for each in wanted.partitions}
        yield Change(action, TOPIC, wanted.name, _first_code(done.partitions), {"replicas": places})


def _listed(replicas: Sequence[int] | None) -> str:
    return "cancelled" if replicas is None else ",".join(map(str, replicas))


def _elections(asked: Any, reply: Any) -> Changes:
    """Without partitions that have the right leader: nothing was done to them."""
    if reply.error_code:
        yield Change("kafka:ElectLeaders", CLUSTER, "", reply.error_code)
        return
    for done in reply.replica_election_results:
        needed = [
            each
            for each in done.partition_result
            if each.error_code != ErrorCode.ELECTION_NOT_NEEDED
        ]
        if needed:
            params = {
                "election_type": asked.election_type,
                "partitions": [each.partition_id for each in needed],
            }
            yield Change("kafka:ElectLeaders", TOPIC, done.topic, _first_code(needed), params)


def _unregister(asked: Any, reply: Any) -> Changes:
    params = {"node": asked.broker_id}
    yield Change("kafka:UnregisterBroker", CLUSTER, "", reply.error_code, params)


def _alter_scram(asked: Any, reply: Any) -> Changes:
    gone = {each.name for each in asked.deletions}
    for done in reply.results:
        params = {"user": done.user, "deleted": done.user in gone}
        yield Change("kafka:AlterScram", CLUSTER, "", done.error_code, params)


def _create_token(_asked: Any, reply: Any) -> Changes:
    params = {"owner": reply.principal_name, "token_id": reply.token_id}
    yield Change("kafka:CreateDelegationToken", CLUSTER, "", reply.error_code, params)


def _change_token(action: str) -> Callable[[Any, Any], Changes]:
    """The request names the token by its secret, which is not noted."""

    def changes(_asked: Any, reply: Any) -> Changes:
        params = {"expires_at_ms": reply.expiry_timestamp_ms}
        yield Change(action, CLUSTER, "", reply.error_code, params)

    return changes


_CHANGES: Final[Mapping[int, Callable[[Any, Any], Changes]]] = {
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    30: _create_acls,
    31: _delete_acls,
    33: _alter_configs,
    37: _create_partitions,
    38: _create_token,
    39: _change_token("kafka:RenewDelegationToken"),
    40: _change_token("kafka:ExpireDelegationToken"),
    42: _delete_groups,
    43: _elections,
    44: _alter_configs,
    45: _reassignments,
    47: _delete_offsets,
    49: _alter_quotas,
    51: _alter_scram,
    64: _unregister,
    88: _create_internal_topics,
    91: _share_offsets("kafka:AlterShareGroupOffsets"),
    92: _share_offsets("kafka:DeleteShareGroupOffsets"),
}
_AUTHENTICATE: Final = 36
# StreamsGroupHeartbeat calls ``run_noted`` itself when it creates topics.
AUDITED: Final = frozenset((*_CHANGES, _AUTHENTICATE)) - {88}


async def run_noted(
    trail: AuditTrail, context: KafkaContext, call: KafkaCall, action: KafkaAction, asked: Any
) -> Any:
    """Carry it out, once there is room in the trail, and note how it ended."""
    await trail.admit()
    try:
        reply = await action.run(context, call, asked)
    except BaseException:
        # Nobody was told what became of it: the client has gone, or is hung up on.
        change = Change(f"kafka:{call.api.name}", CLUSTER, "", 0)
        trail.add(_entry(context, call, change, gone=CANCELLED))
        raise
    if call.api.key == _AUTHENTICATE:
        _note_login(trail, context, call, reply)
    else:
        await _note_changes(trail, context, call, _CHANGES[call.api.key](asked, reply))
    return reply


async def _note_changes(
    trail: AuditTrail, context: KafkaContext, call: KafkaCall, changes: Changes
) -> None:
    failures = 0
    async for change in call.slices.each(changes):
        failures += change.code != 0
        if change.code and failures > FAILURES_MAX:
            continue
        entry = _entry(context, call, change)
        if entry.outcome == DENIED:
            trail.deny(entry)
        else:
            trail.add(entry)
    if failures > FAILURES_MAX:
        rest = {"failures_left_out": failures - FAILURES_MAX}
        trail.add(_entry(context, call, Change(f"kafka:{call.api.name}", CLUSTER, "", 0, rest)))


def _note_login(trail: AuditTrail, context: KafkaContext, call: KafkaCall, reply: Any) -> None:
    """When it is over; some mechanisms take more than one request."""
    login = context.logins.of(call.connection)
    entry = _entry(context, call, Change(LOG_IN, CLUSTER, "", reply.error_code))
    if reply.error_code:
        trail.deny(entry)
    elif login.mechanism is None and login.caller is not None:
        caller = login.caller
        trail.add(structs.replace(entry, principal=caller.arn, tenant=caller.account))


def _entry(context: KafkaContext, call: KafkaCall, change: Change, *, gone: str = "") -> AuditEntry:
    code = ErrorCode(change.code).name if change.code else gone
    outcome = OK
    if code:
        outcome = UNKNOWN if gone else DENIED if code in DENIALS else FAILED
    if change.kind == TOPIC:
        resource = topic_arn(context, change.name) if change.name else ""
    else:
        named = change.kind == GROUP and change.name
        resource = group_arn(context, change.name) if named else cluster_arn(context)
    return AuditEntry(
        at_ms=context.clock.wall_ms(),
        principal=call.caller.arn if call.account else "",
        tenant=call.account,
        source_ip=call.connection.peer,
        action=change.action,
        resource=resource[:NAME_MAX],
        outcome=outcome,
        error_code=code,
        request_id=str(call.header.correlation_id),
        params=redacted(change.params),
    )


def _first_code(parts: Any) -> int:
    return next((part.error_code for part in parts if part.error_code), 0)
