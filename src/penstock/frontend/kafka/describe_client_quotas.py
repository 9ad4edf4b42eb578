"""DescribeClientQuotas: the quotas of the caller's tenant whose entities match a filter; for
operators also those of addresses."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from penstock.frontend.kafka.client_quotas import CLIENT_ID, IP, USER, Entity, entity_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_cluster
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import Refusal
from penstock.metadata.resource_configs import CLIENT_QUOTA, Resource
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

KEY = 48


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        check_cluster(context, call, Operation.DESCRIBE_CONFIGS)
        filters = _filters(asked.components)
    except Refusal as refusal:
        return DescribeClientQuotasResponse(
            error_code=refusal.code, error_message=refusal.message, entries=None
        )
    is_operator = call.caller.is_trusted or call.caller.is_operator
    found = [
        _entry(context, resource, entity)
        async for resource in call.slices.each(_resources(context))
        if _is_shown(context, resource, entity := entity_of(resource.name), is_operator)
        and _matches(dict(entity), filters, is_strict=asked.strict)
    ]
    return DescribeClientQuotasResponse(error_message="", entries=found)


def _resources(context: KafkaContext) -> Iterator[Resource]:
    for account in {context.account, context.config.account}:
        for name in tuple(context.dynamic.stored.names(account, CLIENT_QUOTA)):
            yield Resource(account, CLIENT_QUOTA, name)


def _is_shown(context: KafkaContext, resource: Resource, entity: Entity, is_operator: bool) -> bool:
    """Quotas of addresses are stored in the account of the nodes."""
    return is_operator if entity[0][0] == IP else resource.account == context.account


def _filters(components: Sequence[ComponentData]) -> Mapping[str, ComponentData]:
    """By type. Raises Refusal."""
    filters: dict[str, ComponentData] = {}
    for one in components:
        kind = one.entity_type
        if not kind:
            raise _invalid("The filter has an empty entity type.")
        if kind in filters:
            raise _invalid(f"The filter has {kind[:100]} more than once.")
        if kind not in (USER, CLIENT_ID, IP):
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Unknown entity type {kind[:100]!r}.")
        if one.match_type not in list(Match):
            raise _invalid(
                f"Unknown match type {one.match_type}: use 0 (exact), 1 (default) or 2 (any)."
            )
        if (one.match is None) == (one.match_type == Match.EXACT):
            raise _invalid(
                "Match type 0 (exact) needs a name to match; types 1 and 2 must not have one."
            )
        filters[kind] = one
    if IP in filters and len(filters) > 1:
        raise _invalid("A filter for ip cannot be combined with user or client-id.")
    return filters


def _matches(
    entity: Mapping[str, str | None], filters: Mapping[str, ComponentData], *, is_strict: bool
) -> bool:
    if is_strict and len(entity) != len(filters):
        return False
    return all(
        kind in entity and (one.match_type == Match.ANY or entity[kind] == one.match)
        for kind, one in filters.items()
    )


def _entry(context: KafkaContext, resource: Resource, entity: Entity) -> EntryData:
    quotas = context.dynamic.stored.get(resource)
    return EntryData(
        [EntityData(*part) for part in entity],
        [ValueData(key, float(value)) for key, value in sorted(quotas.items())],
    )


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


ACTION = KafkaAction(KEY, run)
