"""Makes audit entries for logins, and for requests that change topics, replicas, leaders, configs,
groups, access rules or passwords. Each resource that a request names gets one entry, with the error
code from the reply. Entries never contain passwords, salts or records.
Requests that only check a change (``validate_only``) get no entries."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from penstock.frontend.facts.audit import CANCELLED, AuditTrail, make_entry
from penstock.frontend.kafka.context import Handler, KafkaCall
from penstock.frontend.kafka.permissions import arn_of
from penstock.frontend.kafka.usage import DENIALS
from penstock.model.acls import ResourceType
from penstock.wire.facts.audit import DENIED, AuditEntry
from penstock.wire.kafka.faults import ErrorCode

# Maximum number of entries for failures of one request. A last entry counts the other failures.
FAILURES_MAX: Final = 1_000

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
_KINDS: Final[Mapping[int, ResourceType]] = {2: TOPIC, 3: GROUP, 32: GROUP}  # others: the cluster
_AUTHENTICATE: Final = 36


class Change(NamedTuple):
    kind: ResourceType
    name: str
    code: int
    params: Mapping[str, object] = {}


Changes = Iterable[Change]


def _create_topics(request: Any, reply: Any) -> Iterator[Change]:
    wanted = {topic.name: topic for topic in request.topics}
    for done in reply.topics:
        configs = {each.name: each.value for each in wanted[done.name].configs}
        params = {"partitions": done.num_partitions, "configs": configs}
        yield Change(TOPIC, done.name, done.error_code, params)


def _create_internal_topics(request: Any, codes: Any) -> Iterator[Change]:
    for topic in request:
        if topic.name in codes:
            params = {"partitions": topic.partition_count, "configs": dict(topic.configs)}
            yield Change(TOPIC, topic.name, codes[topic.name], params)


def _delete_topics(_asked: Any, reply: Any) -> Iterator[Change]:
    for done in reply.responses:
        yield Change(TOPIC, done.name or "", done.error_code, {"topic_id": done.topic_id.hex()})


def _delete_records(request: Any, reply: Any) -> Iterator[Change]:
    for wanted, done in zip(request.topics, reply.topics, strict=False):
        before = {str(each.partition_index): each.offset for each in wanted.partitions}
        yield Change(TOPIC, wanted.name, _first_code(done.partitions), {"before": before})


def _create_acls(request: Any, reply: Any) -> Iterator[Change]:
    for wanted, done in zip(request.creations, reply.results, strict=False):
        yield _of_acl(wanted, done.error_code)


def _delete_acls(request: Any, reply: Any) -> Iterator[Change]:
    for wanted, done in zip(request.filters, reply.filter_results, strict=False):
        deleted = sum(not each.error_code for each in done.matching_acls)
        code = done.error_code or _first_code(done.matching_acls)
        yield _of_acl(wanted, code, deleted=deleted)


def _of_acl(wanted: Any, code: int, **more: object) -> Change:
    """Return the change to audit for one rule of CreateAcls or one filter of DeleteAcls."""
    resource_type, name, pattern, *rest = structs.astuple(wanted)
    params = dict(zip(("principal", "host", "operation", "permission"), rest, strict=True))
    kind = _KINDS.get(resource_type, CLUSTER)
    return Change(kind, name or "", code, {**params, "pattern": pattern, **more})


def _alter_configs(request: Any, reply: Any) -> Iterator[Change]:
    for wanted, done in zip(request.resources, reply.responses, strict=False):
        configs = {each.name: "" if each.value is None else each.value for each in wanted.configs}
        kind = _KINDS.get(wanted.resource_type, CLUSTER)
        params: dict[str, object] = {"configs": configs}
        if kind == CLUSTER:  # values may be secrets
            named = f"{wanted.resource_type}/{wanted.resource_name}"
            params = {"configs": list(configs), "resource": named}
        yield Change(kind, wanted.resource_name, done.error_code, params)


def _alter_quotas(request: Any, reply: Any) -> Iterator[Change]:
    codes = {
        frozenset((part.entity_type, part.entity_name) for part in done.entity): done.error_code
        for done in reply.entries
    }
    for wanted in request.entries:
        parts = [(part.entity_type, part.entity_name) for part in wanted.entity]
        params = {
            "entity": {kind: "<default>" if name is None else name for kind, name in parts},
            "quotas": {op.key: "removed" if op.remove else op.value for op in wanted.ops},
        }
        yield Change(CLUSTER, "", codes.get(frozenset(parts), 0), params)


def _create_partitions(request: Any, reply: Any) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for done in reply.results:
        yield Change(TOPIC, done.name, done.error_code, {"partitions": counts.get(done.name)})


def _reassignments(request: Any, reply: Any) -> Iterator[Change]:
    if reply.error_code:
        yield Change(CLUSTER, "", reply.error_code)
    for wanted, done in zip(request.topics, reply.responses, strict=False):
        places = {
            str(one.partition_index): "cancelled"
            if one.replicas is None
            else ",".join(map(str, one.replicas))
            for one in wanted.partitions
        }
        yield Change(TOPIC, wanted.name, _first_code(done.partitions), {"replicas": places})


def _elections(request: Any, reply: Any) -> Iterator[Change]:
    """Yield one change to audit per topic, without partitions that needed no election."""
    if reply.error_code:
        yield Change(CLUSTER, "", reply.error_code)
        return
    not_needed = ErrorCode.ELECTION_NOT_NEEDED
    for done in reply.replica_election_results:
        needed = [each for each in done.partition_result if each.error_code != not_needed]
        if needed:
            indexes = [each.partition_id for each in needed]
            params = {"election_type": request.election_type, "partitions": indexes}
            yield Change(TOPIC, done.topic, _first_code(needed), params)


def _alter_scram(request: Any, reply: Any) -> Iterator[Change]:
    gone = {each.name for each in request.deletions}
    for done in reply.results:
        params = {"user": done.user, "deleted": done.user in gone}
        yield Change(CLUSTER, "", done.error_code, params)


def _on_cluster(params: Callable[[Any, Any], Mapping[str, object]]) -> Callable[..., Changes]:
    return lambda request, reply: (Change(CLUSTER, "", reply.error_code, params(request, reply)),)


def _on_group(topic_name: str) -> Callable[..., Changes]:
    return lambda request, reply: (
        Change(
            GROUP,
            request.group_id,
            reply.error_code,
            {"topics": [getattr(topic, topic_name) for topic in request.topics]},
        ),
    )


# These requests identify a token by its secret, which must not be in an entry.
_change_token: Final = _on_cluster(lambda _, reply: {"expires_at_ms": reply.expiry_timestamp_ms})
_CHANGES: Final[Mapping[int, tuple[str, Callable[[Any, Any], Changes]]]] = {
    19: ("CreateTopic", _create_topics),
    20: ("DeleteTopic", _delete_topics),
    21: ("DeleteRecords", _delete_records),
    30: ("CreateAcl", _create_acls),
    31: ("DeleteAcl", _delete_acls),
    33: ("AlterConfigs", _alter_configs),
    37: ("CreatePartitions", _create_partitions),
    38: (
        "CreateDelegationToken",
        _on_cluster(lambda _, reply: {"owner": reply.principal_name, "token_id": reply.token_id}),
    ),
    39: ("RenewDelegationToken", _change_token),
    40: ("ExpireDelegationToken", _change_token),
    42: (
        "DeleteGroup",
        lambda _, reply: (Change(GROUP, done.group_id, done.error_code) for done in reply.results),
    ),
    43: ("ElectLeaders", _elections),
    44: ("AlterConfigs", _alter_configs),
    45: ("AlterPartitionReassignments", _reassignments),
    47: ("DeleteOffsets", _on_group("name")),
    49: ("AlterClientQuotas", _alter_quotas),
    51: ("AlterScram", _alter_scram),
    64: ("UnregisterBroker", _on_cluster(lambda request, _: {"node": request.broker_id})),
    88: ("CreateTopic", _create_internal_topics),
    91: ("AlterShareGroupOffsets", _on_group("topic_name")),
    92: ("DeleteShareGroupOffsets", _on_group("topic_name")),
}
# StreamsGroupHeartbeat calls ``run_audited`` itself when it creates topics.
AUDITED: Final = frozenset((*_CHANGES, _AUTHENTICATE)) - {88}


async def run_audited(trail: AuditTrail, call: KafkaCall, action: Handler, request: Any) -> Any:
    """Run a handler and add audit entries about its result. Waits if the audit trail is full."""
    await trail.admit()
    try:
        reply = await action(call, request)
    except BaseException:
        # The client got no reply: it is gone, or its connection is closed.
        trail.add(_entry(call, call.api.name, Change(CLUSTER, "", 0), gone=CANCELLED))
        raise
    if call.api.key == _AUTHENTICATE:
        _note_login(trail, call, reply)
    elif not getattr(request, "validate_only", False):
        await _note_changes(trail, call, request, reply)
    return reply


async def _note_changes(trail: AuditTrail, call: KafkaCall, request: Any, reply: Any) -> None:
    failures, (name, changes) = 0, _CHANGES[call.api.key]
    async for change in call.slices.each(changes(request, reply)):
        failures += change.code != 0
        if change.code and failures > FAILURES_MAX:
            continue
        entry = _entry(call, name, change)
        if entry.outcome == DENIED:
            trail.deny(entry)
        else:
            trail.add(entry)
    if failures > FAILURES_MAX:
        rest = {"failures_left_out": failures - FAILURES_MAX}
        trail.add(_entry(call, call.api.name, Change(CLUSTER, "", 0, rest)))


def _note_login(trail: AuditTrail, call: KafkaCall, reply: Any) -> None:
    """Add an audit entry if this reply ends the login, with success or failure."""
    login = call.context.logins.of(call.connection)
    entry = _entry(call, "LogIn", Change(CLUSTER, "", reply.error_code))
    if reply.error_code:
        trail.deny(entry)
    elif login.mechanism is None and login.caller is not None:
        caller = login.caller
        trail.add(structs.replace(entry, principal=caller.arn, tenant=caller.account))


def _entry(call: KafkaCall, name: str, change: Change, *, gone: str = "") -> AuditEntry:
    kind = CLUSTER if change.kind is GROUP and not change.name else change.kind
    account, region = call.context.account, call.context.config.region
    is_named = change.name or kind is not TOPIC
    return make_entry(
        f"kafka:{name}",
        at_ms=call.context.clock.wall_ms(),
        caller=call.caller,
        resource=arn_of(account, region, kind, change.name) if is_named else "",
        code=ErrorCode(change.code).name if change.code else gone,
        denials=DENIALS,
        source_ip=call.connection.peer,
        request_id=str(call.header.correlation_id),
        params=change.params,
    )


def _first_code(parts: Any) -> int:
    return next((part.error_code for part in parts if part.error_code), 0)
