"""AlterClientQuotas and DescribeClientQuotas: quotas of users, client ids and addresses. Quotas of
a tenant apply to its own clients only. Tenants share addresses, so only operators see and set
quotas of those."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.frontend.kafka.access.client_quotas import (
    CLIENT_ID,
    FETCHED,
    IP,
    PRODUCED,
    USER,
    Entity,
    entity_of,
    entity_text,
    sorted_entity,
)
from penstock.frontend.kafka.access.connection_rates import CREATION_RATE
from penstock.frontend.kafka.checks import check_cluster, check_operator
from penstock.frontend.kafka.configs.config_values import INT_MAX, is_address
from penstock.frontend.kafka.configs.resources import check_level
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation
from penstock.metadata.topics.resource_configs import CLIENT_QUOTA, Resource
from penstock.model.errors import QuotaExceeded
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, CLIENT_QUOTAS_PER_TENANT_MAX
from penstock.model.stream import LONG_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_client_quotas as alter_wire
from penstock.wire.kafka.generated import describe_client_quotas as describe_wire


class Key(NamedTuple):
    most: float
    is_whole: bool


_OF_CLIENTS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        PRODUCED: Key(LONG_MAX, is_whole=True),
        FETCHED: Key(LONG_MAX, is_whole=True),
        "request_percentage": Key(math.inf, is_whole=False),
        "controller_mutation_rate": Key(math.inf, is_whole=False),
    }
)
_OF_ADDRESSES: Final[Mapping[str, Key]] = MappingProxyType(
    {CREATION_RATE: Key(INT_MAX, is_whole=True)}
)


async def alter(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    named = [(_entity(entry), entry) for entry in request.entries]
    counts = Counter(entity for entity, _ in named)
    replies: dict[Entity, alter_wire.AlterClientQuotasResponseEntryData] = {}
    async for entity, entry in call.slices.each(named):
        fields: dict[str, Any] = {"error_message": None}
        try:
            if counts[entity] > 1:
                raise invalid_request("The request names this entity more than once.")
            await _alter(call, entity, entry, is_dry=request.validate_only)
        except API_ERRORS as error:
            fields = error_fields(error)
        parts = [alter_wire.AlterClientQuotasResponseEntityData(*part) for part in entity]
        replies[entity] = alter_wire.AlterClientQuotasResponseEntryData(**fields, entity=parts)
    return alter_wire.Response(entries=tuple(replies.values()))


def _entity(entry: alter_wire.AlterClientQuotasRequestEntryData) -> Entity:
    return sorted_entity([(part.entity_type, part.entity_name) for part in entry.entity])


async def _alter(
    call: KafkaCall,
    entity: Entity,
    entry: alter_wire.AlterClientQuotasRequestEntryData,
    *,
    is_dry: bool,
) -> None:
    """Raises ApiError and PenstockError."""
    check_cluster(call, Operation.ALTER_CONFIGS)
    account, keys = call.context.account, _OF_CLIENTS
    if IP in dict(entity):
        check_operator(call, Operation.ALTER_CONFIGS)
        account, keys = call.context.config.account, _OF_ADDRESSES
    _check_entity(entity)
    changes: dict[str, str | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise invalid_request(f"The request names the quota {op.key[:100]} more than once.")
        changes[op.key] = None if op.remove else _read(op, keys)
    resource = Resource(account, CLIENT_QUOTA, entity_text(entity))
    stored = call.context.dynamic.stored
    before = stored.get(resource)
    changed = {key: text for key, text in changes.items() if before.get(key) != text}
    if changed and not is_dry:
        check_level(call.context)
        if not before:
            _check_room(call.context, account)
        await stored.change(resource, changed)


def _check_entity(entity: Entity) -> None:
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise invalid_request("The entity is empty: name a user, a client-id or an ip.")
    if len(set(kinds)) < len(kinds):
        raise invalid_request(
            f"The entity has the same type more than once: {', '.join(kinds)[:100]}."
        )
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise invalid_request(f"Unknown entity type {kind[:100]!r}: use user, client-id or ip.")
        if name == "":
            raise invalid_request(f"The name of the {kind} is empty: send null for the default.")
        if name is not None and len(name) > CLIENT_NAME_CHARS_MAX:
            raise invalid_request(
                f"The name of the {kind} has {len(name):,} characters; at most"
                f" {CLIENT_NAME_CHARS_MAX} are allowed."
            )
    if IP in kinds and len(kinds) > 1:
        raise invalid_request("An ip cannot be combined with user or client-id.")
    address = dict(entity).get(IP)
    if address is not None and not is_address(address):
        raise invalid_request(f"{address[:100]!r} is not an IP address.")


def _read(op: alter_wire.OpData, keys: Mapping[str, Key]) -> str:
    """Return the text to store. Raises ApiError."""
    key = keys.get(op.key)
    if key is None:
        raise invalid_request(f"Unknown quota {op.key[:100]!r}: use one of {', '.join(keys)}.")
    if not 0 < op.value < math.inf:  # nor NaN
        raise invalid_request(f"{op.key} must be greater than 0, not {op.value:g}.")
    if op.value > key.most:
        raise invalid_request(f"{op.key} is at most {key.most}, not {op.value:g}.")
    if not key.is_whole:
        return repr(op.value)
    if op.value != int(op.value):
        raise invalid_request(f"{op.key} is a whole number, not {op.value:g}.")
    return str(int(op.value))


def _check_room(context: KafkaContext, account: str) -> None:
    count = len(context.dynamic.stored.names(account, CLIENT_QUOTA))
    if account != context.config.account and count >= CLIENT_QUOTAS_PER_TENANT_MAX:
        raise QuotaExceeded(
            f"{count:,} of {CLIENT_QUOTAS_PER_TENANT_MAX:,} users and client ids have quotas of"
            " their own: remove some first."
        )


# ── Describing ───────────────────────────────────────────────────────────────────────────────


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    try:
        check_cluster(call, Operation.DESCRIBE_CONFIGS)
        filters = _filters(request.components)
    except ApiError as error:
        return describe_wire.Response(**error_fields(error), entries=None)
    is_operator = call.caller.is_trusted or call.caller.is_operator
    found = [
        _entry(call.context, resource, entity)
        async for resource in call.slices.each(_resources(call.context))
        if _is_shown(call.context, resource, entity := entity_of(resource.name), is_operator)
        and _matches(dict(entity), filters, is_strict=request.strict)
    ]
    return describe_wire.Response(error_message="", entries=found)


def _resources(context: KafkaContext) -> Iterator[Resource]:
    for account in {context.account, context.config.account}:
        for name in tuple(context.dynamic.stored.names(account, CLIENT_QUOTA)):
            yield Resource(account, CLIENT_QUOTA, name)


def _is_shown(context: KafkaContext, resource: Resource, entity: Entity, is_operator: bool) -> bool:
    """Quotas of addresses are stored in the account of the nodes."""
    return is_operator if entity[0][0] == IP else resource.account == context.account


def _filters(
    components: Sequence[describe_wire.ComponentData],
) -> Mapping[str, describe_wire.ComponentData]:
    """Return the filters by entity type. Raises ApiError."""
    filters: dict[str, describe_wire.ComponentData] = {}
    for one in components:
        kind = one.entity_type
        if not kind:
            raise invalid_request("The filter has an empty entity type.")
        if kind in filters:
            raise invalid_request(f"The filter has {kind[:100]} more than once.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown entity type {kind[:100]!r}.")
        if one.match_type not in list(Match):
            raise invalid_request(
                f"Unknown match type {one.match_type}: use 0 (exact), 1 (default) or 2 (any)."
            )
        if (one.match is None) == (one.match_type == Match.EXACT):
            raise invalid_request(
                "Match type 0 (exact) needs a name to match; types 1 and 2 must not have one."
            )
        filters[kind] = one
    if IP in filters and len(filters) > 1:
        raise invalid_request("A filter for ip cannot be combined with user or client-id.")
    return filters


def _matches(
    entity: Mapping[str, str | None],
    filters: Mapping[str, describe_wire.ComponentData],
    *,
    is_strict: bool,
) -> bool:
    if is_strict and len(entity) != len(filters):
        return False
    return all(
        kind in entity and (one.match_type == Match.ANY or entity[kind] == one.match)
        for kind, one in filters.items()
    )


def _entry(context: KafkaContext, resource: Resource, entity: Entity) -> describe_wire.EntryData:
    quotas = context.dynamic.stored.get(resource)
    return describe_wire.EntryData(
        [describe_wire.EntityData(*part) for part in entity],
        [describe_wire.ValueData(key, float(value)) for key, value in sorted(quotas.items())],
    )
